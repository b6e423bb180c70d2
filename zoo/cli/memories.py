"""`zoo index` and `zoo search`, which import no PyTorch."""

from __future__ import annotations

from pathlib import Path

from datamodules.core.errors import InputError, check_count, visible
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.retrieval import FolderMemory, IndexMemory, Memory, Retriever, is_existing_index, open_memory
from datamodules.retrieval.base import MOST_HITS
from datamodules.retrieval.dense.embeddings import Embeddings
from zoo.cli.vectors import for_embeddings


def index(
    memory: str,
    file: str | None = None,
    embeddings: str | None = None,
    text_column: TextColumn = "text",
    label_column: Column | None = "label",
    id_column: Column | None = None,
    header: bool | None = None,
    quotes: bool | None = None,
    retriever: Retriever = DEFAULT_RETRIEVER,
) -> None:
    """Build a memory: read a table, index its texts, keep both in a folder.

    Args:
        memory: folder to make.
        file: table of memories (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        embeddings: in place of a table, the folder that `zoo encode` made of one: its vectors are compared.
        text_column: name or number of the text, or several.
        label_column: name or number of the label; null for texts without labels.
        id_column: name or number of an id.
        header: whether a CSV file has a header line; null finds out.
        quotes: whether fields may stand in double quotes; null = in CSV files, not in TSV files.
        retriever: back end and ranking.
    """
    if not memory:
        raise InputError("--memory: names no folder; name one to make")
    if embeddings is not None and file is None:
        made = Embeddings.open(Path(embeddings))
        rows, retriever = made.rows, for_embeddings(retriever, made)
    elif file is not None and embeddings is None:
        rows = read_table(file, text_column, label_column, id_column, header, quotes)
    else:
        raise InputError("zoo index: name a table with --file, or what `zoo encode` made with --embeddings")
    built = FolderMemory.build(rows, retriever, Path(memory))
    labels = built.labels()
    print(f"{memory}: {len(built)} memories" + (f", {len(labels)} labels" if labels else ", no labels"))


def search(query: str, memory: str | None = None, k: int = 10, retriever: Retriever | None = None) -> None:
    """Print the best memories for some words: score, id, label and text.

    Args:
        query: the words.
        memory: a folder that `zoo index` built; not needed for an Elasticsearch index of your own.
        k: how many memories.
        retriever: null takes that of the folder; an ElasticsearchRetriever with an index searches that index.
    """
    check_count("k", k, MOST_HITS)
    if retriever is not None and is_existing_index(retriever):
        opened: Memory = IndexMemory(retriever)
    elif memory is not None:
        opened = open_memory(memory, retriever)
    else:
        raise InputError("zoo search: name a memory folder with --memory, or an index with --retriever.index")
    neighbors = opened.search([query], k)
    if neighbors.rows[0, 0] < 0:
        print("no memory shares a word with the query")
    ids = neighbors.memories.ids
    for row, score in zip(neighbors.rows[0].tolist(), neighbors.scores[0].tolist(), strict=True):
        if row >= 0:
            label = neighbors.memories.label(row)
            shown = "" if label is None else f"[{label}] "
            print(visible(f"{score:8.3f}  {ids[row]}  {shown}{neighbors.memories.texts[row]}"))
