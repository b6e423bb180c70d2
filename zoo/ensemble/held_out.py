"""The held-out rows of a fit that stay with the model; see `zoo.tasks.classification.held_out`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules.retrieval import Memory
from zoo.tasks.classification.held_out import MOST_ROWS, HeldOutRows, HeldOutScores, contents_of


def rows_to_keep(
    texts: Sequence[str] | None,
    labels: Sequence[str],
    groups: NDArray[np.integer],
    known: Sequence[str],
    probabilities: Tensor,
    num_classes: int,
    memory: Memory | None,
    seed: int,
) -> HeldOutRows:
    """The held-out rows without duplicates of each other, drawn by the seed where there are many.

    Args:
        texts: of n rows; None = training rows.
        labels: of n rows.
        groups: [n], equal for duplicates.
        known: the model's labels, those that only the memory has last.
        probabilities: [n, C + N], of the model's labels, by weights that were fitted without the row.
        num_classes: C; the others only the memory has.
        memory: read by the members.
        seed: of the run.
    """
    rows = np.unique(groups, return_index=True)[1]
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MOST_ROWS])
    kept, chosen = [labels[row] for row in rows], probabilities[rows].double()
    best, answer = chosen.max(dim=1)
    column = {label: number for number, label in enumerate(known)}
    # Nothing is known about the error of an answer that only the memory has, unless held-out rows have the label.
    unproven = [number for number in range(num_classes, len(known)) if known[number] not in kept]
    of_label = [
        float(chosen[row, column[label]]) if label in column else 0.0 for row, label in enumerate(kept)
    ]
    scores = HeldOutScores(
        np.where(np.isin(answer, unproven), -1.0, best),
        np.array([known[number] == label for number, label in zip(answer.tolist(), kept, strict=True)], bool),
        np.array(of_label, np.float64),
    )
    return HeldOutRows(
        None if texts is None else [texts[row] for row in rows], kept, scores, contents_of(memory)
    )
