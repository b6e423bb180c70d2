"""Cross-fitting: each row is classified by members that have learned from no row of its fold.

The fit, `zoo memory tune --refit` and the audit of a memory use it. It knows neither a model nor a trainer: a `Reader`
knows how to read rows, and what has to be learned again without a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.members import Members
from zoo.ensemble.outputs import Outputs
from zoo.ensemble.pool import HeldOut, Pool, fit_pool, folds_of

#: Folds of held-out rows, each classified with weights that were fitted to the others.
FOLDS = 5
#: Rows that are classified together.
_ROWS = 256


class FoldReader(Protocol):
    """Reads rows of a table as inputs of members, with an encoder that has not learned from the rows of a fold."""

    @property
    def memory(self) -> tuple[EncodedMemory | None, Tensor | None]:
        """The memory that is searched by the encoder's vectors, and the classes of its rows."""

    def read(self, rows: NDArray[np.int64], inputs: set[Input]) -> Readings:
        """The inputs of members for some rows."""


class Reader(Protocol):
    """Reads the rows of a table; the fit, `tune` and the audit make one."""

    def without(self, rows: NDArray[np.int64]) -> FoldReader:
        """A reader whose encoder has not learned from some of the rows."""


@dataclass(frozen=True)
class ReadRows:
    """A `Reader` of a table that was read before, by an encoder that has learned from none of its rows."""

    readings: Readings
    memory: tuple[EncodedMemory | None, Tensor | None] = (None, None)

    def read(self, rows: NDArray[np.int64], inputs: set[Input]) -> Readings:
        """The inputs of some rows."""
        return self.readings.select(rows)

    def without(self, rows: NDArray[np.int64]) -> Self:
        """The reader itself."""
        return self


def cross_fit(
    reader: Reader,
    members: Callable[[], Members],
    target: NDArray[np.int64],
    groups: NDArray[np.integer],
    folds: NDArray[np.int64],
) -> HeldOut:
    """Outputs for n rows, each of members that are fitted without its fold.

    Args:
        reader: of the n rows.
        members: makes members that are not fitted yet.
        target: int64 [n], classes.
        groups: [n], equal for duplicates.
        folds: int64 [n], 0, 1, ...; rows of one group are in one fold.
    """
    parts, order = [], []
    for fold in range(folds.max() + 1):
        rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        own, fitted = reader.without(rows), members()
        fitted.search(*own.memory)
        fitted.fit(own.read(others, fitted.fitted_on), target[others])
        outputs = classify(fitted, own.read(rows, fitted.reads))
        parts.append(HeldOut(outputs, torch.from_numpy(target[rows]), groups[rows]))
        order.append(rows)
    return HeldOut.join(parts).select(np.argsort(np.concatenate(order), kind="stable"))


def classify(members: Members, readings: Readings, device: torch.device | str = "cpu") -> dict[str, Outputs]:
    """The outputs of members for a table's inputs, of at least one text, on the CPU."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(readings.texts), _ROWS):
            block = np.arange(start, min(start + _ROWS, len(readings.texts)))
            parts.append(members.classify(readings.select(block).to(torch.device(device))))
    return {name: type(first).join([part[name] for part in parts]) for name, first in parts[0].items()}


def pools_by_fold(
    held_out: HeldOut, added: Sequence[HeldOut], num_classes: int
) -> Iterator[tuple[NDArray[np.int64], Pool | None]]:
    """The rows of each fold of held-out rows, and weights that are fitted without it; None if no other row is left.

    Args:
        held_out: rows whose classes may be unknown to the model.
        added: further rows on which weights are fitted.
        num_classes: C of the model.
    """
    folds = folds_of(held_out.target.numpy(), FOLDS, held_out.groups)
    for fold in range(folds.max() + 1):
        others = held_out.select(np.flatnonzero(folds != fold)).known(num_classes)
        fitted_on = [part for part in (others, *added) if len(part.target)]
        yield np.flatnonzero(folds == fold), fit_pool(HeldOut.join(fitted_on)) if fitted_on else None
