"""`zoo search`, which imports no PyTorch for words."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from datamodules.core.errors import InputError, check_count, excerpt, visible
from datamodules.core.outputs import check_output
from datamodules.core.progress import progress_bar
from datamodules.core.storage import new_file
from datamodules.core.types import PlainDict
from datamodules.corpora.readers import open_lines
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_identified, read_table
from datamodules.corpora.trec_runs import is_run
from datamodules.retrieval import Memory, Retriever, is_existing_index, open_memory
from datamodules.retrieval.base import MOST_HITS
from datamodules.retrieval.memories.memory import Neighbors
from zoo.tasks.records import BLOCK, blocks_of, records_or_lines

log = logging.getLogger("zoo")

#: Characters of a memory on a terminal.
EXCERPT = 100
#: Memories of queries that are searched together: each takes about 300 bytes.
MOST_MEMORIES = 200_000


def search(
    query: str | None = None,
    memory: str | None = None,
    k: int = 10,
    retriever: Retriever | None = None,
    queries: str | None = None,
    output: str | None = None,
    text_column: TextColumn | None = None,
    id_column: Column | None = None,
) -> None:
    """Print the best memories for some words: score, id, label and text; or write those of many queries to a file.

    Args:
        query: the words.
        memory: a folder that `zoo index` built; not needed for an Elasticsearch index of your own.
        k: how many memories.
        retriever: null takes that of the folder; an ElasticsearchRetriever with an index searches that index.
        queries: in place of the words, a table of queries (CSV, TSV, JSONL, Parquet), or a .txt file with one a line.
        output: of `queries`: a TREC run (.run, .trec), or JSON lines (.jsonl); null writes these to standard output.
        text_column: name or number of the queries' text, or several; null: `text`.
        id_column: name or number of the queries' ids; null: for a run the column `id`, else the numbers of the rows.
    """
    check_count("k", k, MOST_HITS)
    if (query is None) == (queries is None):
        raise InputError("zoo search: give some words, or a file of queries with --queries")
    if queries is None and output is not None:
        raise InputError("--output: is written for a file of queries; name one with --queries")
    path = None if output is None else check_output(output, [str(queries)])
    run_name = path.stem if path is not None and is_run(path) else None
    if path is not None and run_name is None and path.suffix not in (".jsonl", ".ndjson", ".json"):
        raise InputError(f"--output {output}: name it .run for a TREC run, or .jsonl for JSON lines")
    if queries is None:
        _print_best(_open(memory, retriever), str(query), k)
        return
    rows = _read_queries(queries, text_column, id_column, for_run=run_name is not None)
    records = progress_bar(_records(_open(memory, retriever), rows, k), "searching", len(rows), " queries")
    with ExitStack() as stack:
        file = sys.stdout
        if path is not None:
            partial = stack.enter_context(new_file(path, "--output"))
            file = stack.enter_context(partial.open("w", encoding="utf-8"))
        for each in records_or_lines(records, "memories", run_name):
            line = each if isinstance(each, str) else visible(json.dumps(each, ensure_ascii=False))
            file.write(line + "\n")
    log.info("%s queries%s", f"{len(rows):,}", "" if path is None else f": {path}")


def _open(memory: str | None, retriever: Retriever | None) -> Memory:
    if (memory is None) != (retriever is not None and is_existing_index(retriever)):
        raise InputError("zoo search: name a memory folder with --memory, or an index with --retriever.index")
    return open_memory(memory, retriever)


def _print_best(memory: Memory, query: str, k: int) -> None:
    (hits,) = hits_of(memory.search([query], k))
    if not hits:
        print("no memory shares a word with the query")
    for hit in hits:
        label = "" if hit["label"] is None else f"[{hit['label']}] "
        text = excerpt(hit["text"], EXCERPT) if sys.stdout.isatty() else visible(hit["text"])
        print(visible(f"{hit['score']:8.3f}  {hit['id']}  {label}") + text)


def hits_of(neighbors: Neighbors, score_name: str = "score") -> Iterator[list[PlainDict]]:
    """Yield the memories of each text with their scores, best first."""
    table = neighbors.memories.table.to_pylist()
    for each in zip(neighbors.rows.tolist(), neighbors.scores.tolist(), strict=True):
        yield [{**table[row], score_name: score} for row, score in zip(*each, strict=True) if row >= 0]


def _read_queries(file: str, text_column: TextColumn | None, id_column: Column | None, for_run: bool) -> Rows:
    if file.endswith(".txt"):
        if for_run:
            raise InputError(f"{file}: a TREC run needs ids; give a table with a column `id`")
        return Rows.from_lists((line.rstrip("\r\n") for line in open_lines(file)), source=file)
    if for_run:
        return read_identified(file, text_column, id_column)
    return read_table(file, text_column or "text", label_column=None, id_column=id_column)


def _records(memory: Memory, queries: Rows, k: int) -> Iterator[PlainDict]:
    """Yield each query with its best memories."""
    for block in blocks_of(zip(queries.ids, queries.texts, strict=True), min(BLOCK, MOST_MEMORIES // k)):
        ids, texts = zip(*block, strict=True)
        for id_, text, hits in zip(ids, texts, hits_of(memory.search(texts, k)), strict=True):
            yield {"id": id_, "query": text, "memories": hits}
