"""Reference classifiers without training: the lowest scores that a model should exceed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import ClassificationBatch
from datamodules.classification import label_numbers
from datamodules.core.errors import InputError
from zoo.layers.vote import count_votes, vote
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.fitted import Fitted
from zoo.tasks.outputs import ClassificationOutput

#: Share of the votes in a prediction; class frequencies, with the rest, decide where votes are equal or missing.
VOTES = 1 - 1e-3


class Majority(Fitted, ClassificationTask):
    """The most frequent training label for every text."""

    uses_memory = False

    @override
    def finish(self, data: DataModule) -> None:
        labels = data.spec.labels
        numbers = label_numbers(data.split("train").rows, labels)
        self.fitted = {"counts": torch.from_numpy(np.bincount(numbers, minlength=len(labels)))}

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        return ClassificationOutput(self.prior(batch), torch.zeros_like(batch.memory_score))

    def prior(self, batch: ClassificationBatch) -> Tensor:
        """float32 [B, C]: log frequencies of the classes in the training rows, the same for every text."""
        counts: Tensor = self.fitted["counts"].to(batch.target.device)
        return (counts / counts.sum()).clamp(min=1e-9).log().expand(len(batch.target), -1)


class NeighborVote(Majority):
    """The label with most votes among a text's memories: with BM25, the usual nearest-neighbor baseline."""

    uses_memory = True

    @override
    def finish(self, data: DataModule) -> None:
        if data.spec.memory_labels != data.spec.labels:
            raise InputError("NeighborVote: the memories have no labels or another task's")
        super().finish(data)

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Count the votes; a text without memories gets the most frequent class."""
        score = batch.memory_score
        shares = vote(torch.zeros_like(score), score, batch.memory_mask, 0.0)
        prior = self.prior(batch).softmax(dim=1)
        votes = count_votes(shares, batch.memory_target, prior.shape[1])
        total = votes.sum(dim=1, keepdim=True)
        mixed = (1 - VOTES) * prior + VOTES * torch.where(total > 0, votes / total.clamp(min=1e-6), prior)
        return ClassificationOutput(mixed.clamp(min=1e-9).log(), shares)
