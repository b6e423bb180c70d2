"""Held-out rows that stay with a model, for the error of its answers: in its folder.

The rows belong to the weights for which they were held out: those of the training, or of `zoo memory tune`. Results for
another version of the memory are computed once in a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.storage import fingerprint_of
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

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]]) -> HeldOutScores:
        """Return the results that `describe` described."""
        probability, is_right, of_label = (np.array(values[name], np.float64) for name in cls._fields)
        if not len(probability) == len(is_right) == len(of_label):
            raise ValueError("the results of held-out rows differ in length")
        if not (np.isfinite(probability).all() and np.isfinite(of_label).all()):
            raise ValueError("the results of held-out rows are not finite")
        return cls(probability, is_right.astype(bool), of_label)

    def describe(self) -> PlainDict:
        """Return plain values."""
        return {name: values.tolist() for name, values in self._asdict().items()}


@dataclass(frozen=True)
class HeldOutRows:
    """n labelled rows without duplicates, each with a fold, and weights that were fitted without the fold."""

    #: None for rows of the training, from which the members have learned by now.
    texts: list[str] | None
    labels: list[str]
    #: of each row, 0, 1, ...
    folds: list[int]
    #: weights of each fold, as the model describes its weights.
    weights: list[PlainDict]
    #: the results, for the memory and the weights with the fingerprint `state`; None = they are not computed yet.
    scores: HeldOutScores | None = None
    state: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> HeldOutRows:
        """Return the rows that `describe` described."""
        rows = cls(**values)
        if not (
            len(rows.labels) == len(rows.folds) == len(rows.labels if rows.texts is None else rows.texts)
        ):
            raise ValueError("held-out rows lack a text, a label or a fold")
        if rows.scores is None:
            return rows
        numbers = {name: values.tolist() for name, values in values["scores"].items()}
        return replace(rows, scores=HeldOutScores.of(numbers))

    def describe(self) -> PlainDict:
        """Return plain values and tensors."""
        import torch

        if self.scores is None:
            return vars(self)
        numbers = {name: torch.from_numpy(values) for name, values in self.scores._asdict().items()}
        return {**vars(self), "scores": numbers}


def state_of(memory: Memory | None, weights: PlainDict | None, members: str | None = None) -> str:
    """Return the fingerprint of all that decides a prediction and may change after the training."""
    contents = "" if memory is None else memory.location()
    if isinstance(memory, FolderMemory):
        contents = memory.fingerprint
    return fingerprint_of({"memory": contents, "weights": weights, "members": members})


class KeptHeldOut:
    """The held-out rows of an open model, and its results for them by the version of the memory.

    `zoo.load` makes it. A classifier reads and keeps results here, for as long as the process lives.
    """

    def __init__(self, rows: HeldOutRows | None, members: str | None = None) -> None:
        """Take the rows; `members` is the file of the fitted members, None = those of the training."""
        self.rows, self.members = rows, members
        self._results: dict[str, HeldOutScores] = {}

    def scores(self, state: str) -> HeldOutScores | None:
        """Return the results for a state; None = they are not known."""
        if self.rows is not None and self.rows.scores is not None and self.rows.state == state:
            return self.rows.scores
        return self._results.get(state)

    def keep(self, state: str, scores: HeldOutScores) -> None:
        """Keep results."""
        self._results[state] = scores
