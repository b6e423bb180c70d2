"""Cross-fitting: each row is classified by members that have learned from no row of its fold.

The fit, `zoo memory tune --refit` and the audit of a memory use it. It knows neither a model nor a trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.core.progress import progress_bar
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import Members
from zoo.ensemble.outputs import Outputs
from zoo.ensemble.pool import HeldOut, Pool, fit_pool, folds_of

#: Reads n rows by an encoder that has not learned from some: from inputs that all encoders share, and their numbers.
ReadWithout: TypeAlias = Callable[[Readings, NDArray[np.int64]], Readings]

#: The fold of each of n rows, int64 [n], and encoders that have not learned from the rows of a fold.
TunedFolds: TypeAlias = tuple[NDArray[np.int64], ReadWithout]

#: Folds of held-out rows, each classified by members, or with weights, that were fitted to the others.
FOLDS = 5
#: Rows that are classified together.
_ROWS = 256


def cross_fit(
    readings: Readings,
    members: Sequence[str],
    sizes: Sizes,
    target: NDArray[np.int64],
    groups: NDArray[np.integer],
    tuned: TunedFolds | None = None,
) -> HeldOut:
    """Outputs for n rows, each of members and references that are fitted without its fold.

    `target` has classes [n], or sets [n, C]. Rows of one group [n], which are duplicates, are in one fold. Without
    `tuned` folds, the encoder of `readings` has learned from no row.
    """
    folds, read_without = tuned or (folds_of(target, FOLDS, groups), None)
    parts, order = [], []
    for fold in progress_bar(range(folds.max() + 1), desc="cross-fitting", unit=" folds"):
        rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        read = readings if read_without is None else read_without(readings, rows)
        fitted = Members(members, sizes)
        learned = read.select(others)
        fitted.fit(learned, target[others])
        outputs = classify(fitted, members, read.select(rows).known_to(learned))
        parts.append(HeldOut(outputs, torch.from_numpy(target[rows]), groups[rows]))
        order.append(rows)
    return HeldOut.join(parts).select(np.argsort(np.concatenate(order), kind="stable"))


def classify(
    members: Members, names: Sequence[str], readings: Readings, device: torch.device | str = "cpu"
) -> dict[str, Outputs]:
    """The outputs of some members for a table's inputs, on the CPU; none without a text."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(readings.texts), _ROWS):
            block = np.arange(start, min(start + _ROWS, len(readings.texts)))
            parts.append(members.classify(readings.select(block).to(torch.device(device)), names))
    if not parts:
        return {}
    return {name: parts[0][name].joined([part[name] for part in parts[1:]]) for name in names}


def pools_by_fold(
    held_out: HeldOut, added: Sequence[HeldOut], pool: Pool
) -> Iterator[tuple[NDArray[np.int64], Pool | None]]:
    """The rows of each fold of held-out rows, and weights that are fitted without it; None if no other row is left.

    Weights are fitted on the `added` rows as well. The class weights of the pool, which is fitted on all rows, and,
    since familiarity has a scale of its own, those of it are kept.
    """
    folds = folds_of(held_out.target.numpy(), FOLDS, held_out.groups)
    for fold in range(folds.max() + 1):
        others = held_out.select(np.flatnonzero(folds != fold)).known()
        fitted_on = [part for part in (others, *added) if len(part.target)]
        without = None
        if fitted_on:
            without = fit_pool(HeldOut.join(fitted_on), pool.class_weights)._replace(familiar=pool.familiar)
        yield np.flatnonzero(folds == fold), without
