"""`zoo index`, which imports no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datamodules.core.errors import InputError
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever, FolderMemory, Retriever
from datamodules.retrieval.dense.embeddings import Embeddings, join_parts
from datamodules.retrieval.dense.text_vectors import TextVectors


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
        retriever = DenseRetriever(embeddings.made_by.encoder, **embeddings.made_by.options)
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
