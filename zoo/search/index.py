"""`zoo index`, which imports no PyTorch for words, and `zoo encode`, which makes the embeddings that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datamodules.core.errors import InputError, check_count
from datamodules.core.shards import Shard
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever, FolderMemory, Retriever
from datamodules.retrieval.dense.embeddings import Embeddings, TextSide, check_output, join_parts
from datamodules.retrieval.dense.text_vectors import TextVectors
from zoo.model_folder.folder import ModelFolder

#: Number of texts that are sorted by length, encoded and written together; only their vectors are in memory.
BLOCK = 1 << 14


def index(
    memory: str,
    file: str | None = None,
    embeddings: str | None = None,
    text_column: TextColumn = "text",
    label_column: Column | None = "label",
    id_column: Column | None = None,
    quotes: bool | None = None,
    retriever: Retriever = DEFAULT_RETRIEVER,
) -> None:
    """Build a memory: read a table, index its texts, keep both in a folder.

    Args:
        memory: folder to make.
        file: table of memories (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        embeddings: in place of a table, the folder that `zoo encode` made of one: its vectors are compared. The
            parts that `--shard` wrote under this name are joined.
        text_column: name or number of the text, or several.
        label_column: name or number of the label; null for texts without labels.
        id_column: name or number of an id.
        quotes: whether fields may stand in double quotes; null = in CSV files, not in TSV files.
        retriever: back end and ranking.
    """
    if not memory:
        raise InputError("--memory: names no folder; name one to make")
    if embeddings is not None and file is None:
        made = Embeddings.open(join_parts(Path(embeddings)))
        rows, retriever = made.rows, for_embeddings(retriever, made)
    elif file is not None and embeddings is None:
        rows = read_table(file, text_column, label_column, id_column, quotes=quotes)
    else:
        raise InputError("zoo index: name a table with --file, or what `zoo encode` made with --embeddings")
    built = FolderMemory.build(rows, retriever, Path(memory))
    labels = built.labels()
    print(f"{memory}: {len(built)} memories" + (f", {len(labels)} labels" if labels else ", no labels"))


def for_embeddings(retriever: Retriever, embeddings: Embeddings) -> Retriever:
    """Return the retriever that searches embeddings, or raise an `InputError` if it ranks by anything else."""
    if retriever.describe() == EmbeddedRetriever().describe():
        retriever = DenseRetriever(embeddings.made_by["encoder"], **embeddings.made_by["options"])
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


def encode(
    input: str,
    output: str,
    ckpt_path: str | None = None,
    encoder: str | None = None,
    side: TextSide = "document",
    text_column: TextColumn = "text",
    id_column: Column | None = None,
    label_column: Column | None = None,
    quotes: bool | None = None,
    batch_size: int = 256,
    device: str = "cpu",
    shard: str | None = None,
    **of_encoder: Any,
) -> None:
    """Write the embeddings of a table's texts, with its ids: a folder that `zoo index --embeddings` takes.

    The folder has `vectors.npy` (float32, a row for each text, of length 1; 0 for a text without words), `rows.arrow`
    (ids, texts and labels in the same order) and `manifest.json`.

    Args:
        input: a table (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        output: folder to make; only earlier embeddings are replaced.
        ckpt_path: a model that encodes texts, such as a KNNBiLSTM or an LSTMRNN.
        encoder: in place of a model, a sentence encoder: its name on the Hub, or its folder.
        side: the encoder, of a model with one for queries and one for documents.
        text_column: name or number of the text, or several, which are joined.
        id_column: name or number of an id; null numbers the rows.
        label_column: name or number of a label, for a memory with labels.
        quotes: whether fields may stand in double quotes; null = in CSV files, not in TSV files.
        batch_size: texts that go through the network together.
        device: cpu, cuda, cuda:1, ...
        shard: encode one of several parts of the table, such as 3/16, into a folder such as OUTPUT.03-of-16;
            `zoo index --embeddings OUTPUT` joins them to the rows and vectors of one process, bit by bit.
        **of_encoder: options of a sentence encoder, see `DenseRetriever`.
    """
    check_count("batch_size", batch_size)
    part = None if shard is None else Shard.parse(shard)
    # Checked before hours of encoding.
    folder = Path(output) if part is None else part.part_of(Path(output))
    check_output(folder)
    if (ckpt_path is None) == (encoder is None):
        raise InputError("zoo encode: name a model with --ckpt_path, or a sentence encoder with --encoder")
    if ckpt_path is not None:
        encoder, of_encoder = str(ModelFolder.open(ckpt_path).path), {}
    assert encoder is not None
    encoder = str(Path(encoder).absolute()) if Path(encoder).exists() else encoder
    vectors = DenseRetriever(encoder, batch_size=batch_size, device=device, **of_encoder).vectors
    contents = vectors.ranking.vectors_fingerprint
    made_by = {"encoder": encoder, "contents": contents, "side": side, "options": of_encoder}
    queries = side == "query"
    if queries and not vectors.has_query_side:
        raise InputError("--side query: the model encodes queries as it does all texts; omit the option")
    rows = read_table(input, text_column, label_column, id_column, quotes=quotes)
    if part is not None:
        rows = rows.part(part.rows(len(rows), BLOCK))
    blocks = vectors.blocks(rows.texts, BLOCK, queries=queries)
    Embeddings.write(folder, rows, blocks, vectors.size, made_by)
    print(f"{folder}: {len(rows)} vectors of {vectors.size} numbers")
