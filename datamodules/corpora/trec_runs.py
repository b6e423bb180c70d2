"""Runs as TREC's tools write them: what a system ranks for each query, in lines `query Q0 document rank score name`."""

from __future__ import annotations

import math
from pathlib import Path

from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.readers import open_lines

#: Query -> document -> score.
Run = dict[str, dict[str, float]]


def read_run(path: str | Path) -> Run:
    """Read a run. As in TREC's tools the scores say the order, not the ranks that are written.

    Args:
        path: lines `query Q0 document rank score name`, perhaps .gz or .xz.

    Raises:
        InputError: a line of another kind, a score that is no number, a document that a query has twice, or nothing.
    """
    found: Run = {}
    for number, line in enumerate(open_lines(path, "strict"), 1):
        place = f"{path}, line {number}"
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(
                f"{place}: {len(fields)} fields; write query, Q0, document, rank, score and name"
            )
        query, _, document, _, score, _ = fields
        of_query = found.setdefault(query, {})
        if document in of_query:
            raise InputError(f"{place}: query {excerpt(query)} has document {excerpt(document)} already")
        try:
            of_query[document] = float(score)
        except ValueError:
            raise InputError(f"{place}: the score {excerpt(score)!r} is no number") from None
        if math.isnan(of_query[document]):
            raise InputError(f"{place}: the score {excerpt(score)!r} is no number")
    if not found:
        raise InputError(f"{path}: no ranked documents; give a run with at least one")
    return found


def run_line(query: str, document: str, rank: int, score: float, name: str) -> str:
    """A line of a run.

    Args:
        query: id of the query.
        document: id of the document.
        rank: from 1.
        score: higher = ranked before lower.
        name: of the system.

    Raises:
        InputError: an id or the name is empty or has white space, which separates fields.
    """
    for what, id_ in (("query", query), ("document", document), ("name", name)):
        if len(id_.split()) != 1 or id_ != id_.strip():
            raise InputError(f"{what} {excerpt(id_)!r}: a field of a TREC run has no white space; rename it")
    return f"{query} Q0 {document} {rank} {score!r} {name}"
