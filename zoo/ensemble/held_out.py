"""The held-out rows of a fit that stay with the model; see `zoo.tasks.classification.held_out`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datamodules.retrieval import Memory
from zoo.ensemble.pool import HeldOut, Pool, fit_pool, folds_of
from zoo.tasks.classification.held_out import MOST_ROWS, HeldOutRows, HeldOutScores, state_of

#: Folds of held-out rows.
FOLDS = 5


def scores_of_rows(probabilities: Tensor, target: NDArray[np.int64]) -> HeldOutScores:
    """The results for n rows from probabilities [n, C]; a class outside of 0 to C - 1 is unknown to the model."""
    best, answer = probabilities.max(dim=1)
    is_known = (target >= 0) & (target < probabilities.shape[1])
    of_label = probabilities[np.arange(len(target)), np.where(is_known, target, 0)].double().numpy()
    is_right = answer.numpy() == target
    return HeldOutScores(best.double().numpy(), is_right, np.where(is_known, of_label, 0.0))


def rows_of_fit(
    texts: Sequence[str] | None,
    labels: Sequence[str],
    held_out: HeldOut,
    folds: NDArray[np.int64],
    pools: Sequence[Pool],
    scores: HeldOutScores,
    memory: Memory | None,
    seed: int,
) -> HeldOutRows:
    """The rows of the answer's table without duplicates of each other, drawn by the seed where there are many.

    Args:
        texts: of the n rows of the table; None = training rows.
        labels: of the n rows.
        held_out: of the n rows.
        folds: int64 [n].
        pools: of each fold, the last one is the model's.
        scores: results for the n rows.
        memory: read by the members.
        seed: of the run.
    """
    rows = np.unique(held_out.groups, return_index=True)[1]
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MOST_ROWS])
    *of_folds, last = pools
    return HeldOutRows(
        texts=None if texts is None else [texts[row] for row in rows],
        labels=[labels[row] for row in rows],
        folds=folds[rows].tolist(),
        weights=[pool.describe() for pool in of_folds],
        scores=HeldOutScores(*(values[rows] for values in scores)),
        state=state_of(memory, last.describe()),
    )


def rows_of_refit(
    texts: Sequence[str],
    labels: Sequence[str],
    target: NDArray[np.int64],
    groups: NDArray[np.integer],
    held_out: HeldOut,
    added: Sequence[HeldOut],
    num_classes: int,
) -> HeldOutRows | None:
    """The labelled rows of `zoo memory tune` with the weights of each fold; None for a single row.

    Args:
        texts: n rows.
        labels: of the n rows.
        target: int64 [n], their classes; C and above: classes that only the memory has.
        groups: [n], equal for duplicates.
        held_out: of the rows with a class below C.
        added: further rows on which weights are fitted.
        num_classes: C.
    """
    folds = folds_of(target, FOLDS, groups)
    of_held_out, weights = folds[target < num_classes], []
    for fold in range(folds.max() + 1):
        others = held_out.select(np.flatnonzero(of_held_out != fold))
        fitted_on = [part for part in (others, *added) if len(part.target)]
        if not fitted_on:
            return None
        weights.append(fit_pool(HeldOut.join(fitted_on)).describe())
    rows = np.sort(np.unique(groups, return_index=True)[1])[:MOST_ROWS]
    return HeldOutRows(
        [texts[row] for row in rows], [labels[row] for row in rows], folds[rows].tolist(), weights
    )
