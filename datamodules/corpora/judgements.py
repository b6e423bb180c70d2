"""Judged queries of a collection: the documents that answer a query, with grades."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datamodules.core.errors import InputError, excerpt, name_some
from datamodules.core.files import is_number
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.core.sharing import cached_property
from datamodules.corpora.readers import open_lines, read_blocks
from datamodules.corpora.records import Columns
from datamodules.corpora.rows import Rows, StoredTable, Texts

log = logging.getLogger(__name__)

#: Names of a judgement's query, document and grade in tables with named columns.
NAMES = (
    ("query_id", "query-id", "qid", "query"),
    ("doc_id", "corpus_id", "corpus-id", "docid", "document_id", "document"),
    ("grade", "score", "relevance", "label"),
)


@dataclass(frozen=True, eq=False)
class Judgements(StoredTable):
    """J judgements of the documents of a collection for Q queries."""

    #: the queries with their ids, in order of their first judgement.
    queries: Rows
    #: the whole collection.
    documents: Rows
    #: [J], rows of `queries`, ascending.
    query: NDArray[np.int32]
    #: [J], rows of `documents`; a query has a document once.
    document: NDArray[np.int32]
    #: [J], 0 = judged to be irrelevant; nan = unknown.
    grade: NDArray[np.float32]
    source: str = "a table"

    def __len__(self) -> int:
        return len(self.grade)

    @cached_property
    def lists(self) -> Ragged:
        """The numbers of each query's judgements."""
        return Ragged(np.arange(len(self)), offsets_of(np.bincount(self.query, minlength=len(self.queries))))

    @property
    def has_relevant(self) -> NDArray[np.bool_]:
        """bool [Q]: True where a document of the query has a grade above 0."""
        return np.isin(np.arange(len(self.queries)), self.query[self.grade > 0])

    def grades(self, query: int) -> dict[int, float]:
        """Return the judged documents of a query, as rows of `documents`, with their grades."""
        judged = self.lists[query]
        return dict(zip(self.document[judged].tolist(), self.grade[judged].tolist(), strict=True))

    def select(self, queries: ArrayLike) -> Judgements:
        """Return the judgements of some queries, which are numbered in the order given."""
        judged = self.lists.take(np.asarray(queries, np.int64))
        arrays = judged.list_numbers.astype(np.int32), self.document[judged.values], self.grade[judged.values]
        return Judgements(self.queries.select(queries), self.documents, *arrays, self.source)


def read_judgements(path: str | Path, queries: Rows, documents: Rows) -> Judgements:
    """Read the judgements of known queries and documents; of several of a pair the highest grade counts."""
    source = str(path)
    query_rows, document_rows = queries.row_of_id(), documents.row_of_id()
    unknown_queries: dict[str, None] = {}
    unknown_documents: dict[str, None] = {}
    skipped = 0
    best: dict[tuple[int, int], float] = {}
    for query, document, grade, _ in judged_pairs(path):
        query_row, document_row = query_rows.get(query), document_rows.get(document)
        if query_row is None:
            unknown_queries.setdefault(query)
        if document_row is None:
            unknown_documents.setdefault(document)
        if query_row is None or document_row is None:
            skipped += 1
            continue
        pair = query_row, document_row
        best[pair] = max(grade, best.get(pair, 0.0))
    if skipped:
        unknown = (unknown_queries, "queries", queries), (unknown_documents, "documents", documents)
        missing = [
            f"{len(ids)} {kind} ({name_some([*ids])}) that {rows.source} lacks"
            for ids, kind, rows in unknown
            if ids
        ]
        log.warning("%s: %d judgements are skipped: they name %s", source, skipped, " and ".join(missing))
    if not best:
        raise InputError(f"{source}: no judgement of a known query and document; name its queries and corpus")
    query_of, document_of = np.array(list(best), np.int32).T
    distinct, first = np.unique(query_of, return_index=True)
    if without := len(queries) - len(distinct):
        ids = queries.table.column("id").take(np.setdiff1d(np.arange(len(queries)), distinct))
        # Of a million ids, only the ten that are named become strings.
        named = name_some(Texts(ids))
        message = "%s: %d of %d queries have no judgement (%s) and are skipped"
        log.warning(message, source, without, len(queries), named)
    order = np.argsort(query_of, kind="stable")
    arrays = query_of[order], document_of[order], np.array(list(best.values()), np.float32)[order]
    # In order of the first judgement of a query.
    return Judgements(queries, documents, *arrays, source).select(distinct[np.argsort(first)])


def judged_pairs(path: str | Path) -> Iterator[tuple[str, str, float, str]]:
    """Yield query, document and grade of each judgement, and its file and line or row for messages.

    The file has lines `query 0 document grade` (TREC) or `query document grade` (with a line of names, as in BEIR, or
    without); or it is a .csv, .jsonl or .parquet table with columns of these names (see `NAMES`).
    """
    for query, document, grade, location in _judged_fields(path):
        if not is_number(grade) or not 0 <= float(grade) < math.inf:
            raise InputError(f"{location}: the grade {excerpt(grade)!r} must be a number of 0 or more")
        yield query, document, float(grade), location


def _judged_fields(path: str | Path) -> Iterator[tuple[str, str, str, str]]:
    if any(end in (".csv", ".jsonl", ".ndjson", ".json", ".parquet") for end in Path(path).suffixes):
        for block in read_blocks(path, Columns(NAMES)):
            columns = [block.stripped(column) for column in range(3)]
            for record, (query, document, grade) in enumerate(zip(*columns, strict=True)):
                yield query, document, grade, block.location(record)
        return
    for number, line in enumerate(open_lines(path), 1):
        fields = line.split()
        location = f"{path}, line {number}"
        if not fields:
            continue
        if len(fields) not in (3, 4):
            raise InputError(f"{location}: {len(fields)} fields; write query, document and grade")
        if number == 1 and not is_number(fields[-1]):
            continue  # the names of the columns
        yield fields[0], fields[-2], fields[-1], location
