"""Held-out rows that stay with a model, and its results for them, by which the error of its answers is bounded.

A fit writes them, and `zoo memory tune`; other versions of the memory use those of the last of these. Each row was
classified by members and weights that had no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory, Memory

#: Maximum number of rows that stay with a model.
MOST_ROWS = 5000


class HeldOutScores(NamedTuple):
    """A model's results for n held-out rows, which are no duplicates of each other."""

    #: float64 [n], of the answer; negative where the model has no answer at any threshold.
    probability: NDArray[np.float64]
    #: bool [n].
    is_right: NDArray[np.bool_]
    #: float64 [n], probability of the row's own label; 0 where the model does not know it.
    of_label: NDArray[np.float64]


@dataclass(frozen=True)
class HeldOutRows:
    """n labelled rows without duplicates of each other, and the model's results for them."""

    #: None for rows of the training, from which the members have learned by now.
    texts: list[str] | None
    labels: list[str]
    scores: HeldOutScores
    #: fingerprint of the memory that was read; see `contents_of`.
    memory: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HeldOutRows:
        """Return the rows that `describe` described."""
        numbers = {name: values["scores"][name].numpy() for name in HeldOutScores._fields}
        rows = cls(**{**values, "scores": HeldOutScores(**numbers)})
        counts = {len(each) for each in (rows.labels, *rows.scores)}
        if counts != {len(rows.labels if rows.texts is None else rows.texts)}:
            raise ValueError("held-out rows lack a text, a label or a result")
        if not (np.isfinite(rows.scores.probability).all() and np.isfinite(rows.scores.of_label).all()):
            raise ValueError("the results of held-out rows are not finite")
        return rows

    def describe(self) -> PlainDict:
        """Return plain values and tensors."""
        import torch

        numbers = {name: torch.from_numpy(values) for name, values in self.scores._asdict().items()}
        return {**vars(self), "scores": numbers}


def contents_of(memory: Memory | None) -> str:
    """Return the fingerprint of a version of a memory; for an index of the user's, its location."""
    if isinstance(memory, FolderMemory):
        return memory.fingerprint
    return "" if memory is None else memory.location()
