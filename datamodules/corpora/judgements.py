"""Judged queries of a collection: which of its documents answer a query, and how well.

A query has judgements of a few documents, and a collection many documents that nobody judged. The documents are read
once and shared by all tables of judgements; a judgement is two row numbers and a grade.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.readers import open_lines, open_records
from datamodules.corpora.records import Column, Columns, is_number
from datamodules.corpora.rows import Rows

log = logging.getLogger(__name__)

#: What tables with named columns call a judgement's query, document and grade; the first that is there is read.
NAMES = (
    ("query_id", "query-id", "qid", "query"),
    ("doc_id", "corpus_id", "corpus-id", "docid", "document_id", "document"),
    ("grade", "score", "relevance", "label"),
)
#: Ids that a message names at most.
_NAMED = 3


@dataclass(frozen=True, eq=False)
class Judgements:
    """J judgements of the documents of a collection for Q queries.

    Attributes:
        queries: the queries with their ids, in order of their first judgement.
        documents: the whole collection.
        query: int32 [J], rows of `queries`, rising.
        document: int32 [J], rows of `documents`; a query has a document once.
        grade: float32 [J], 0 = judged to be irrelevant.
        source: what messages call the table.
    """

    queries: Rows
    documents: Rows
    query: NDArray[np.int32]
    document: NDArray[np.int32]
    grade: NDArray[np.float32]
    source: str

    @staticmethod
    def unjudged(queries: Rows, documents: Rows) -> Judgements:
        """Queries that come now, of which nothing is known."""
        nothing = np.zeros(0, np.int32)
        return Judgements(queries, documents, nothing, nothing, nothing.astype(np.float32), queries.source)

    def __len__(self) -> int:
        return len(self.grade)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [Q + 1]: query q has the judgements `offsets[q]` to `offsets[q + 1] - 1`."""
        return np.searchsorted(self.query, np.arange(len(self.queries) + 1)).astype(np.int64)

    @property
    def has_relevant(self) -> NDArray[np.bool_]:
        """bool [Q]: whether a document of the query has a grade above 0."""
        found = np.zeros(len(self.queries), bool)
        found[self.query[self.grade > 0]] = True
        return found

    def grades(self, query: int) -> dict[int, float]:
        """A query's judged documents, as rows of `documents`, and their grades."""
        judged = slice(self.offsets[query], self.offsets[query + 1])
        return dict(zip(self.document[judged].tolist(), self.grade[judged].tolist(), strict=True))

    def select(self, queries: ArrayLike) -> Judgements:
        """The judgements of some queries, which are numbered anew in this order."""
        chosen = np.asarray(queries, np.int64)
        place = np.full(len(self.queries), -1, np.int32)
        place[chosen] = np.arange(len(chosen), dtype=np.int32)
        number = place[self.query]
        order = np.argsort(number, kind="stable")
        order = order[number[order] >= 0]
        return Judgements(
            self.queries.select(chosen),
            self.documents,
            number[order],
            self.document[order],
            self.grade[order],
            self.source,
        )

    def save(self, folder: Path) -> None:
        """Write the files that `load` maps; the documents are kept elsewhere, once for all tables."""
        self.queries.save(folder / "queries.arrow")
        for name in ("query", "document", "grade"):
            np.save(folder / f"{name}.npy", getattr(self, name))

    @staticmethod
    def load(folder: Path, documents: Rows, source: str) -> Judgements:
        """Map what `save` wrote."""
        names = ("query", "document", "grade")
        query, document, grade = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in names)
        queries = Rows(Rows.load(folder / "queries.arrow").table, source)
        return Judgements(queries, documents, query, document, grade, source)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of queries, documents and judgements; the files' names do not matter."""
        digest = hashlib.sha256(f"{self.queries.fingerprint} {self.documents.fingerprint}".encode())
        for values, kind in ((self.query, "<i4"), (self.document, "<i4"), (self.grade, "<f4")):
            digest.update(np.asarray(values).astype(kind).tobytes())
        return digest.hexdigest()

    def write_qrels(self, path: Path) -> None:
        """Write the judgements as TREC's tools read them: `query 0 document grade`."""
        queries, documents = self.queries.ids, self.documents.ids
        with path.open("w", encoding="utf-8") as file:
            for query, document, grade in zip(self.query, self.document, self.grade, strict=True):
                file.write(f"{queries[query]} 0 {documents[document]} {grade:g}\n")


def read_judgements(path: str | Path, queries: Rows, documents: Rows) -> Judgements:
    """Read judgements; a pair that is judged twice keeps its higher grade.

    Ids that no text has are left out, and counted and named in the log, as are queries without a judgement.

    Args:
        path: lines of three or four fields, separated by white space: `query 0 document grade` (TREC) or
            `query document grade` (with a line of names, as in BEIR, or without); or a .jsonl or .parquet table with
            columns of these names (see `NAMES`).
        queries: with their ids.
        documents: with theirs.

    Raises:
        InputError: a line of another kind, a grade that is no number of 0 or more, or no judgement is left; names
            file and line.
    """
    source, known = str(path), (_numbered(queries), _numbered(documents))
    unknown: tuple[dict[str, None], dict[str, None]] = ({}, {})
    left_out = 0
    best: dict[tuple[int, int], float] = {}
    for query, document, label, place in _fields(path):
        grade = _grade(label, place)
        pair = known[0].get(query), known[1].get(document)
        if pair[0] is None or pair[1] is None:
            left_out += 1
            if pair[0] is None:
                unknown[0].setdefault(query)
            if pair[1] is None:
                unknown[1].setdefault(document)
            continue
        at = pair[0], pair[1]
        best[at] = max(grade, best.get(at, 0.0))
    if left_out:
        told = " and ".join(
            f"{len(ids)} {what} ({_some(ids)}) that {rows.source} has not"
            for ids, what, rows in zip(unknown, ("queries", "documents"), (queries, documents), strict=True)
            if ids
        )
        log.warning("%s: %d judgements are left out: they name %s", source, left_out, told)
    if not best:
        raise InputError(
            f"{source}: no judgement of a known query and document; name the queries and the corpus that it belongs to"
        )
    order = np.array([[*pair, grade] for pair, grade in best.items()], np.float64)
    row = order[:, 0].astype(np.int64)
    judged, first = np.unique(row, return_index=True)
    judged = judged[np.argsort(first)]
    if without := len(queries) - len(judged):
        ids = np.setdiff1d(np.arange(len(queries)), judged)[:_NAMED]
        log.warning(
            "%s: %d of %d queries have no judgement (%s) and are left out",
            source,
            without,
            len(queries),
            _some(queries.select(ids).ids, without),
        )
    everything = Judgements(
        queries,
        documents,
        row.astype(np.int32),
        order[:, 1].astype(np.int32),
        order[:, 2].astype(np.float32),
        source,
    )
    return everything.select(judged)


def _fields(path: str | Path) -> Iterator[tuple[str, str, str, str]]:
    """Query, document and grade of each judgement as they are written, and its place for messages."""
    suffixes = Path(path).suffixes
    if any(end in (".jsonl", ".ndjson", ".json", ".parquet") for end in suffixes):
        columns: list[Column] = [_first_there(path, names) for names in NAMES]
        records = open_records(path, Columns(columns))
        for block in records.blocks():
            values = [list(map(str.strip, block.strings(column))) for column in range(3)]
            for i, (query, document, grade) in enumerate(zip(*values, strict=True)):
                yield query, document, grade, block.place(i)
        return
    for number, line in enumerate(open_lines(path, "strict"), 1):
        fields = line.split()
        place = f"{path}, line {number}"
        if not fields:
            continue
        if len(fields) not in (3, 4):
            raise InputError(f"{place}: {len(fields)} fields; write query, document and grade")
        if number == 1 and not is_number(fields[-1]):
            continue  # the names of the columns
        yield fields[0], fields[-2], fields[-1], place


def _first_there(path: str | Path, names: Sequence[str]) -> str:
    for name in names:
        try:
            next(open_records(path, Columns(name)).stream)
        except InputError:
            continue
        return name
    raise InputError(f"{path}: has none of the columns {', '.join(names)}; rename one")


def _grade(label: str, place: str) -> float:
    if not is_number(label) or not 0 <= float(label) < math.inf:
        raise InputError(f"{place}: the grade {excerpt(label)!r} must be a number of 0 or more")
    return float(label)


def _numbered(rows: Rows) -> dict[str, int]:
    return {id_: row for row, id_ in enumerate(rows.ids)}


def _some(ids: Sequence[str] | dict[str, None], total: int | None = None) -> str:
    """The first ids, and whether there are more."""
    named = [excerpt(id_) for id_ in list(ids)[:_NAMED]]
    return ", ".join(named) + (", ..." if (total or len(ids)) > len(named) else "")
