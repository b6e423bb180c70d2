"""`zoo encode`, and the retriever of `zoo index --embeddings`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datamodules.core.errors import InputError, check_count
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever, Retriever
from datamodules.retrieval.dense.embeddings import Embeddings, MadeBy, Side, check_output
from datamodules.retrieval.dense.ranking import DenseRanking
from datamodules.retrieval.dense.text_vectors import TextVectors

#: Number of texts that are sorted by length, encoded and written together; only their vectors are in memory.
BLOCK = 1 << 14


def encode(
    ckpt_path: str,
    input: str,
    output: str,
    side: Side = "document",
    text_column: TextColumn = "text",
    id_column: Column | None = None,
    label_column: Column | None = None,
    header: bool | None = None,
    quotes: bool | None = None,
    batch_size: int = 256,
    device: str = "cpu",
) -> None:
    """Write the embeddings of a table's texts, with its ids: a folder that `zoo index --embeddings` takes.

    The folder has `vectors.npy` (float32, a row for each text, of length 1; 0 for a text without words), `rows.arrow`
    (ids, texts and labels in the same order) and `manifest.json`.

    Args:
        ckpt_path: a model that encodes texts, such as a KNNBiLSTM or an LSTMRNN.
        input: a table (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        output: folder to make; only earlier embeddings are replaced.
        side: the encoder, of a model with one for queries and one for documents.
        text_column: name or number of the text, or several, which are joined.
        id_column: name or number of an id; null numbers the rows.
        label_column: name or number of a label, for a memory with labels.
        header: whether a CSV file has a header line; null finds out.
        quotes: whether fields may stand in double quotes; null = in CSV files, not in TSV files.
        batch_size: texts that go through the network together.
        device: cpu, cuda, cuda:1, ...
    """
    check_count("batch_size", batch_size)
    # Checked before hours of encoding.
    folder = Path(output)
    check_output(folder)
    path = Path(ckpt_path).absolute()
    best = path / "checkpoints" / "best.ckpt"  # of a run folder
    checkpoint = str(best if best.is_file() else path)
    ranking = DenseRanking(checkpoint)
    made_by = MadeBy(checkpoint, ranking.contents, side)
    vectors = TextVectors(ranking, batch_size, device, threads=None)
    queries = side == "query"
    if queries and not vectors.has_query_side:
        raise InputError("--side query: the model encodes queries as it does all texts; omit the option")
    rows = read_table(input, text_column, label_column, id_column, header, quotes)
    blocks = vectors.blocks(rows.texts, BLOCK, progress=True, delay=0, queries=queries)
    made = Embeddings.write(folder, rows, blocks, vectors.size, made_by)
    print(f"{output}: {len(made.rows)} vectors of {made.size} numbers")


def for_embeddings(retriever: Retriever, embeddings: Embeddings) -> Retriever:
    """Return the retriever that searches embeddings, or raise an `InputError` if it ranks by anything else."""
    if retriever.describe() == EmbeddedRetriever().describe():
        retriever = DenseRetriever(embeddings.made_by.encoder)
    users = list(_vectors_of(retriever))
    if not users:
        raise InputError(
            f"--embeddings: a {type(retriever).__name__} ranks by words; omit --retriever, or name"
            " DenseRetriever or ElasticsearchDenseRetriever"
        )
    for vectors in users:
        vectors.use(embeddings)
    return retriever


def _vectors_of(retriever: Retriever) -> Iterator[TextVectors]:
    """Yield the vectors of a retriever and of its members."""
    if isinstance(vectors := getattr(retriever, "vectors", None), TextVectors):
        yield vectors
    for member in retriever.retrievers:
        yield from _vectors_of(member)
