"""Runs in TREC's format: the documents that a system ranks for each query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import is_number
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.readers import open_lines
from datamodules.corpora.rows import Rows


def is_run(path: str | Path) -> bool:
    """Return whether the name of an output chooses TREC's format."""
    return Path(path).suffix in (".run", ".trec")


def read_candidates(path: str | Path, queries: Rows, documents: Rows, collection: str) -> Judgements:
    """Read lines `query Q0 document rank score name` as documents of unknown grade for each query, the best first.

    As in TREC's tools, the ranks are ignored. Raises an `InputError` for a run of other queries or of another
    collection, which is named in the message.
    """
    query_rows, document_rows = queries.row_of_id(), documents.row_of_id()
    scores: dict[tuple[str, str], float] = {}
    for number, line in enumerate(open_lines(path), 1):
        location = f"{path}, line {number}"
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(f"{location}: {len(fields)} fields; give query, Q0, document, rank, score, name")
        query, _, document, _, score, _ = fields
        if (query, document) in scores:
            raise InputError(f"{location}: query {excerpt(query)} has document {excerpt(document)} already")
        if not is_number(score) or not math.isfinite(float(score)):
            raise InputError(f"{location}: the score {excerpt(score)!r} is not a finite number")
        if query not in query_rows:
            raise InputError(f"{path}: query {excerpt(query)!r} is not in {queries.source}; name its queries")
        if document not in document_rows:
            named = f"{path}: the document {excerpt(document)!r} is not in {collection}"
            raise InputError(f"{named}; is it a run of another collection?")
        scores[query, document] = float(score)
    if not scores:
        raise InputError(f"{path}: no ranked documents; give a run with at least one")
    ranked = sorted(scores, key=lambda pair: (query_rows[pair[0]], -scores[pair], pair[1]))
    query_of = np.array([query_rows[query] for query, _ in ranked], np.int32)
    document_of = np.array([document_rows[document] for _, document in ranked], np.int32)
    unknown = np.full(len(ranked), np.nan, np.float32)
    return Judgements(queries, documents, query_of, document_of, unknown, str(path))


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
