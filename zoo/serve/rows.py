"""Rows of a memory as plain values: hits of a search, and the report on one row."""

from __future__ import annotations

import pyarrow.compute as pc

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.memories.memory import Neighbors


def hits_of(neighbors: Neighbors) -> list[list[PlainDict]]:
    """The memories of each text, best first."""
    table = neighbors.memories.table.to_pylist()
    return [
        [
            {**table[row], "retrieval_score": score}
            for row, score in zip(rows, scores, strict=True)
            if row >= 0
        ]
        for rows, scores in zip(neighbors.rows.tolist(), neighbors.scores.tolist(), strict=True)
    ]


def report_row(memory: Memory, row_id: str, k: int) -> PlainDict | None:
    """A row, its k best neighbors without itself and its duplicates, and their vote; None if there is no such row.

    A neighbor votes for its label with the third power of its retrieval score; `votes` are shares, the largest first.
    """
    if not isinstance(memory, FolderMemory):
        raise InputError(
            f"{memory.location()}: an index of yours; only the rows of a memory folder are audited"
        )
    row = pc.index(memory.rows.table.column("id"), row_id).as_py()
    if row < 0:
        return None
    (described,) = memory.rows.select([row]).table.to_pylist()
    neighbors = memory.search([described["text"]], k, exclude_duplicates=True, own_ids=[row_id])
    hits = hits_of(neighbors)[0]
    report: PlainDict = {**described, "neighbors": hits}
    if described["label"] is None:
        return report
    votes = _votes(hits)
    best = next(iter(votes), None)
    agrees = None if best is None else best == described["label"]
    return {**report, "votes": votes, "vote": best, "agrees": agrees}


def _votes(hits: list[PlainDict]) -> dict[str, float]:
    """Label -> share of the vote of hits, best first; see `zoo.layers.vote`."""
    shares: dict[str, float] = {}
    for hit in hits:
        relative = hit["retrieval_score"] / max(hits[0]["retrieval_score"], 1e-6)
        shares[hit["label"]] = shares.get(hit["label"], 0.0) + max(relative, 1e-3) ** 3
    total = sum(shares.values())
    return {label: share / total for label, share in sorted(shares.items(), key=lambda each: -each[1])}
