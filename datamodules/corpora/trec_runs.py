"""Runs in TREC's format: the documents that a system ranks for each query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import is_number
from datamodules.corpora.readers import open_lines
from datamodules.corpora.rows import Rows

#: Query -> document -> score.
Run = dict[str, dict[str, float]]

#: Suffixes of the files that are written as runs.
_SUFFIXES = (".run", ".trec")


def is_run(path: str | Path) -> bool:
    """Return whether the name of an output chooses TREC's format."""
    return Path(path).suffix in _SUFFIXES


def read_run(path: str | Path) -> Run:
    """Read lines `query Q0 document rank score name`; as in TREC's tools, the ranks are ignored."""
    run: Run = {}
    for number, line in enumerate(open_lines(path), 1):
        location = f"{path}, line {number}"
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(f"{location}: {len(fields)} fields; give query, Q0, document, rank, score, name")
        query, _, document, _, score, _ = fields
        scores = run.setdefault(query, {})
        if document in scores:
            raise InputError(f"{location}: query {excerpt(query)} has document {excerpt(document)} already")
        if not is_number(score) or not math.isfinite(float(score)):
            raise InputError(f"{location}: the score {excerpt(score)!r} is not a finite number")
        scores[document] = float(score)
    if not run:
        raise InputError(f"{path}: no ranked documents; give a run with at least one")
    return run


def read_candidates(
    path: str | Path, queries: Rows, documents: Rows, collection: str
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the rows of the queries [n], ascending, and of the documents [n] of a run; the best document first.

    Raises an `InputError` for a run of other queries or of another collection, which is named in the message.
    """
    query_rows, document_rows = queries.row_of_id(), documents.row_of_id()
    run = read_run(path)
    for query, scores in run.items():
        if query not in query_rows:
            raise InputError(f"{path}: query {excerpt(query)!r} is not in {queries.source}; name its queries")
        unknown = [document for document in scores if document not in document_rows]
        if unknown:
            named = f"{path}: the document {excerpt(unknown[0])!r} is not in {collection}"
            raise InputError(f"{named}; is it a run of another collection?")
    query_of: list[int] = []
    document_of: list[int] = []
    for query in sorted(run, key=query_rows.__getitem__):
        ranked = sorted(run[query].items(), key=lambda item: (-item[1], item[0]))
        query_of += [query_rows[query]] * len(ranked)
        document_of += [document_rows[document] for document, _ in ranked]
    return np.array(query_of, np.int32), np.array(document_of, np.int32)


def run_lines(query: str, ranked: Iterable[tuple[str, float]], name: str) -> Iterator[str]:
    """Yield the lines of a query's documents, best first, each with its score.

    Raises an `InputError` for an id or a name that is empty or has white space, which separates fields.
    """
    _check_field("query", query)
    _check_field("name", name)
    for rank, (document, score) in enumerate(ranked, 1):
        _check_field("document", document)
        yield f"{query} Q0 {document} {rank} {score!r} {name}"


def _check_field(kind: str, value: str) -> None:
    if len(value.split()) != 1 or value != value.strip():
        raise InputError(f"{kind} {excerpt(value)!r}: a field of a TREC run has no white space; rename it")
