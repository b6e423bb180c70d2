"""Rows of a memory as plain values: hits of a search, and the report on one row."""

from __future__ import annotations

import numpy as np
import torch

from datamodules.core.errors import InputError, check_count
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.base import MOST_HITS
from datamodules.retrieval.memories.memory import Neighbors
from zoo.layers.vote import count_votes, vote


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
    import pyarrow.compute as pc

    check_count("k", k, MOST_HITS)
    if not isinstance(memory, FolderMemory):
        raise InputError(
            f"{memory.location()}: an index of yours; only the rows of a memory folder are audited"
        )
    row = pc.index(memory.rows.table.column("id"), row_id).as_py()
    if row < 0:
        return None
    (described,) = memory.rows.select([row]).table.to_pylist()
    neighbors = memory.search([described["text"]], k, exclude_duplicates=True, own_ids=[row_id])
    report: PlainDict = {**described, "neighbors": hits_of(neighbors)[0]}
    if described["label"] is None:
        return report
    votes = _votes(neighbors)
    best = next(iter(votes), None)
    return {
        **report,
        "votes": votes,
        "vote": best,
        "agrees": None if best is None else best == described["label"],
    }


def _votes(neighbors: Neighbors) -> dict[str, float]:
    """Label -> share of the vote of one text's neighbors, largest first."""
    memories = neighbors.memories
    labels = memories.distinct_labels()
    number = {label: position for position, label in enumerate(labels)}
    # Row -1 (no memory) reads the appended class.
    classes = np.array([*(number[label] for label in memories.labels or ()), -1])
    rows, scores = torch.from_numpy(neighbors.rows), torch.from_numpy(neighbors.scores)
    shares = vote(torch.zeros_like(scores), scores, rows >= 0, 0.0)
    votes = count_votes(shares, torch.from_numpy(classes[neighbors.rows]), len(labels))[0].tolist()
    return dict(sorted(zip(labels, votes, strict=True), key=lambda each: -each[1]))
