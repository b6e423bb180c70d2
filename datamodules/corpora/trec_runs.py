"""Runs in TREC's format: the documents that a system ranks for each query."""

from __future__ import annotations

import math
from pathlib import Path

from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import is_number
from datamodules.corpora.readers import open_lines

#: Query -> document -> score.
Run = dict[str, dict[str, float]]


def read_run(path: str | Path) -> Run:
    """Read lines `query Q0 document rank score name`; as in TREC's tools, the ranks are ignored."""
    run: Run = {}
    for number, line in enumerate(open_lines(path, "strict"), 1):
        location = f"{path}, line {number}"
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(
                f"{location}: {len(fields)} fields; write query, Q0, document, rank, score, name"
            )
        query, _, document, _, score, _ = fields
        scores = run.setdefault(query, {})
        if document in scores:
            raise InputError(f"{location}: query {excerpt(query)} has document {excerpt(document)} already")
        if not is_number(score) or math.isnan(float(score)):
            raise InputError(f"{location}: the score {excerpt(score)!r} is not a number")
        scores[document] = float(score)
    if not run:
        raise InputError(f"{path}: no ranked documents; give a run with at least one")
    return run


def run_line(query: str, document: str, rank: int, score: float, name: str) -> str:
    """Format a line of a run; refuse an id or a name that is empty or has white space, which separates fields."""
    for field, id_ in (("query", query), ("document", document), ("name", name)):
        if len(id_.split()) != 1 or id_ != id_.strip():
            raise InputError(f"{field} {excerpt(id_)!r}: a field of a TREC run has no white space; rename it")
    return f"{query} Q0 {document} {rank} {score!r} {name}"
