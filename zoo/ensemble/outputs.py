"""Uncalibrated outputs of a member for n texts, and their calibration: a temperature, or sharpness and smoothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import Self, override

from zoo.layers.vote import count_votes, vote

#: Temperature, of sets with one of `OF_SETS`; or sharpness and smoothing.
CalibrationValues: TypeAlias = tuple[float, ...]

TEMPERATURES = [0.1 * 1.25**step for step in range(26)]
SHARPNESSES = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0]
#: Of the scores of a label among others, whose planes are drawn to the many texts without it.
SHIFTS = [0.0, 0.2, 0.4, 0.6, 0.8]
#: Shift, and whether labels exclude each other, as they do where each text has one.
OF_SETS = [*product(SHIFTS, [False]), (0.0, True)]
#: Probability of a label in any vote.
_LEAST = 1e-6
SMOOTHINGS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]


@dataclass(frozen=True, eq=False)
class Outputs(ABC):
    """Uncalibrated outputs of one member for n texts: tensors [n, ...]."""

    @property
    @abstractmethod
    def calibrations(self) -> Sequence[CalibrationValues]:
        """The calibrations to choose from."""

    @abstractmethod
    def log_probabilities(self, calibration: CalibrationValues) -> Tensor:
        """Calibrated log probabilities, float32 [n, C]; of sets [n, 2, C], that a label is missing and present."""

    def best_calibration(self, target: Tensor) -> CalibrationValues:
        """The calibration with the highest likelihood of the classes [n], or sets [n, C], and of a row of any class."""
        smoothing = 1 / (1 + len(target))  # by a dozen rows that are all right, no answer is certain

        def loss(calibration: CalibrationValues) -> float:
            logs = self.log_probabilities(calibration)
            return float(functional.cross_entropy(logs, target, label_smoothing=smoothing))

        return min(self.calibrations, key=loss)

    def select(self, rows: NDArray[np.int64]) -> Self:
        """The outputs for some of the texts."""
        return self.each(lambda tensor: tensor[rows])

    def to(self, device: torch.device) -> Self:
        """The same outputs on a device."""
        return self.each(lambda tensor: tensor.to(device))

    def joined(self, others: Sequence[Self]) -> Self:
        """These outputs and those for further texts as one, on the CPU."""
        return self.each(lambda *tensors: torch.cat([tensor.cpu() for tensor in tensors]), others)

    def each(self, change: Callable[..., Tensor], others: Sequence[Self] = ()) -> Self:
        """The outputs with changed tensors; `change` also gets the tensors of the same name in other outputs."""
        changed = {}
        for field in fields(self):
            tensors = [getattr(outputs, field.name) for outputs in (self, *others)]
            if isinstance(tensors[0], Tensor):
                changed[field.name] = change(*tensors)
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Scores(Outputs):
    """A score for each class."""

    #: float32 [n, C].
    scores: Tensor
    #: a score is that of one label of a set.
    multilabel: bool = False

    @property
    @override
    def calibrations(self) -> list[CalibrationValues]:
        return [(each, *of_set) for each in TEMPERATURES for of_set in (OF_SETS if self.multilabel else [()])]

    @override
    def log_probabilities(self, calibration: CalibrationValues) -> Tensor:
        temperature, *of_set = calibration
        scores = self.scores.float() * temperature
        if not self.multilabel:
            return scores.log_softmax(dim=1)
        shift, excludes = of_set
        return of_answers(scores.softmax(dim=1).logit(_LEAST) if excludes else scores + shift * temperature)


@dataclass(frozen=True, eq=False)
class Votes(Outputs):
    """Retrieved memories that vote for their own classes."""

    #: float32 [n, K], retrieval scores.
    score: Tensor
    #: bool [n, K], True where there is a memory.
    mask: Tensor
    #: int64 [n, K], classes of the memories, or their labels [n, K, L]: negative for none, C and above for new ones.
    classes: Tensor
    #: C.
    num_classes: int
    #: int64 [n, K], rows of the memory; None for memories that came with the batch.
    rows: Tensor | None = None
    #: float32 [n, K], the scores as texts and encoders compare: by the root of the number of words, or in standard
    #: deviations from the mean cosine of the memory's rows with each other.
    standard: Tensor | None = None

    calibrations: ClassVar = list(product(SHARPNESSES, SMOOTHINGS))

    @property
    def multilabel(self) -> bool:
        """The memories have sets of labels."""
        return self.classes.ndim == 3

    @property
    def target(self) -> Tensor:
        """int64 [n, K] or [n, K, L], the memories' classes among the C; -1 for all others."""
        exists = self.mask[:, :, None] if self.multilabel else self.mask
        return self.classes.masked_fill(~(exists & (self.classes < self.num_classes)), -1)

    def shares(self, sharpness: float) -> Tensor:
        """float32 [n, K]: weights of the memories, (score / best score) ** sharpness, scaled to the sum 1."""
        score = self.score.masked_fill(~self.mask, 0.0)
        return vote(torch.zeros_like(score), score, self.mask, 0.0, sharpness)

    @override
    def log_probabilities(self, calibration: CalibrationValues) -> Tensor:
        # Smoothed by this number of votes for all classes together; without memories all classes are equal.
        sharpness, smoothing = calibration
        shares = self.shares(sharpness)
        votes = count_votes(shares, self.target, self.num_classes)
        if self.multilabel:  # the shares of the memories that have a label
            share = votes + smoothing / self.num_classes
            return of_answers((share / (shares.sum(dim=1, keepdim=True) + smoothing)).logit(_LEAST))
        return ((votes + smoothing / self.num_classes) / (votes.sum(dim=1, keepdim=True) + smoothing)).log()

    @override
    def best_calibration(self, target: Tensor) -> CalibrationValues:
        if self.multilabel:
            return super().best_calibration(target)
        # As in the base, but only the votes for the texts' own classes are counted, once for each sharpness.
        is_own, is_known = self.target == target[:, None], self.target >= 0
        losses: dict[CalibrationValues, float] = {}
        for sharpness in SHARPNESSES:
            shares = self.shares(sharpness)
            own, total = (shares * is_own).sum(dim=1), (shares * is_known).sum(dim=1)
            for smoothing in SMOOTHINGS:
                likelihood = (own + smoothing / self.num_classes) / (total + smoothing)
                losses[sharpness, smoothing] = float(-likelihood.log().mean())
        return min(losses, key=losses.__getitem__)

    @override
    def joined(self, others: Sequence[Self]) -> Self:
        if not self.multilabel:
            return super().joined(others)
        most = max(each.classes.shape[2] for each in (self, *others))
        first, *rest = (
            replace(each, classes=functional.pad(each.classes, (0, most - each.classes.shape[2]), value=-1))
            for each in (self, *others)
        )
        return super(Votes, first).joined(rest)


def of_answers(log_odds: Tensor) -> Tensor:
    """Log probabilities [n, 2, C] that labels are missing and present, from the log odds of the latter [n, C]."""
    return functional.logsigmoid(torch.stack([-log_odds, log_odds], dim=1))
