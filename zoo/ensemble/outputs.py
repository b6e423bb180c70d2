"""Uncalibrated outputs of a member for n texts, and their calibration: a temperature, or sharpness and smoothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import Self, override

from zoo.layers.vote import count_votes, vote

#: Temperature and nothing, or sharpness and smoothing.
Calibration: TypeAlias = tuple[float, float]

TEMPERATURES = [0.1 * 1.25**step for step in range(26)]
SHARPNESSES = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0]
SMOOTHINGS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]


class Outputs(ABC):
    """Uncalibrated outputs of one member for n texts."""

    #: the calibrations to choose from.
    calibrations: ClassVar[Sequence[Calibration]]

    @abstractmethod
    def log_probabilities(self, calibration: Calibration) -> Tensor:
        """Calibrated log probabilities, float32 [n, C]."""

    @abstractmethod
    def select(self, rows: NDArray[np.int64]) -> Self:
        """The outputs for some of the texts."""

    @classmethod
    @abstractmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Several outputs as one, on the CPU."""

    def best_calibration(self, target: Tensor) -> Calibration:
        """The calibration with the highest likelihood of the classes [n]."""

        def loss(calibration: Calibration) -> float:
            return float(functional.nll_loss(self.log_probabilities(calibration), target))

        return min(self.calibrations, key=loss)


class Scores(Outputs):
    """A score for each class."""

    calibrations: ClassVar = [(temperature, 0.0) for temperature in TEMPERATURES]

    def __init__(self, scores: Tensor) -> None:
        """Take scores, float32 [n, C]."""
        self.scores = scores

    @override
    def log_probabilities(self, calibration: Calibration) -> Tensor:
        return (self.scores.float() * calibration[0]).log_softmax(dim=1)

    @override
    def select(self, rows: NDArray[np.int64]) -> Scores:
        return Scores(self.scores[rows])

    @classmethod
    @override
    def join(cls, parts: Sequence[Scores]) -> Scores:
        return Scores(torch.cat([part.scores.cpu() for part in parts]))


class Votes(Outputs):
    """Retrieved memories that vote for their own classes."""

    calibrations: ClassVar = [(sharpness, smoothing) for sharpness in SHARPNESSES for smoothing in SMOOTHINGS]

    def __init__(
        self,
        score: Tensor,
        mask: Tensor,
        target: Tensor,
        num_classes: int,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Take scores, True where there is a memory, classes and rows of memories, each [n, K].

        Classes and rows are negative where there is none; rows are None for memories that came with the batch.
        """
        self.rows = rows
        self.score = score.masked_fill(~mask, 0.0)
        self.mask = mask
        self.classes = target.masked_fill(~mask, -1)
        self.num_classes = num_classes

    @property
    def target(self) -> Tensor:
        """int64 [n, K], the memories' classes among the C; -1 for all others."""
        return self.classes.masked_fill(self.classes >= self.num_classes, -1)

    def over(self, num_classes: int) -> Votes:
        """The same votes over more classes."""
        return Votes(self.score, self.mask, self.classes, num_classes, self.rows)

    def to(self, device: torch.device) -> Votes:
        """The same votes on a device."""
        score, mask, classes = (part.to(device) for part in (self.score, self.mask, self.classes))
        return Votes(score, mask, classes, self.num_classes, self.rows)

    def shares(self, sharpness: float) -> Tensor:
        """float32 [n, K]: weights of the memories, (score / best score) ** sharpness, scaled to the sum 1."""
        return vote(torch.zeros_like(self.score), self.score, self.mask, 0.0, sharpness)

    @override
    def log_probabilities(self, calibration: Calibration) -> Tensor:
        # Smoothed by this number of votes for all classes together; without memories all classes are equal.
        sharpness, smoothing = calibration
        votes = count_votes(self.shares(sharpness), self.target, self.num_classes)
        return ((votes + smoothing / self.num_classes) / (votes.sum(dim=1, keepdim=True) + smoothing)).log()

    @override
    def select(self, rows: NDArray[np.int64]) -> Votes:
        own = None if self.rows is None else self.rows[rows]
        return Votes(self.score[rows], self.mask[rows], self.classes[rows], self.num_classes, own)

    @classmethod
    @override
    def join(cls, parts: Sequence[Votes]) -> Votes:
        score, mask, classes = (
            torch.cat([getattr(part, name).cpu() for part in parts]) for name in ("score", "mask", "classes")
        )
        rows = [part.rows for part in parts if part.rows is not None]
        return Votes(score, mask, classes, parts[0].num_classes, np.concatenate(rows) if rows else None)
