"""A model of your own: the mean of a text's words, and the labels of its most similar memories.

python examples/your_own_model/soft_vote.py fit --model SoftVote --data ClassificationDataModule --data.train_file FILE
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from datamodules.core.types import Positive
from zoo.cli import main
from zoo.layers.bags import TextBag
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.model import Given
from zoo.tasks.outputs import ClassificationOutput


class SoftVoteNetwork(nn.Module):
    """Shapes: B texts of T words, K memories per text, d numbers in a vector, C classes."""

    def __init__(self, bag: TextBag, spec: ClassificationSpec, sharpness: float) -> None:
        super().__init__()
        self.bag, self.sharpness = bag, sharpness
        self.classifier = nn.Linear(bag.size, len(spec.labels))
        self.vote_weight = nn.Parameter(torch.ones(()))  # what a unanimous vote adds to its class

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        text = self.bag(batch.word, batch.text)  # [B, d]
        logits = self.classifier(text)  # [B, C]
        if batch.memory_mask.shape[1] == 0:  # --data.num_memories 0
            return ClassificationOutput(logits, torch.zeros_like(batch.memory_score))

        # A memory of several texts is encoded once. If no text has a memory, one empty memory replaces them.
        memories = batch.memory_text if len(batch.memory_text) else batch.text.new_zeros(1, 1)
        memory = self.bag(batch.word, memories)[batch.memory]  # [B, K, d]

        # Missing memories, and memories without a label, have no vote.
        votes = batch.memory_mask & (batch.memory_target >= 0)  # [B, K]
        similarity = functional.cosine_similarity(text.unsqueeze(1), memory, dim=2)
        lowest = torch.finfo(similarity.dtype).min
        scores = (self.sharpness * similarity).masked_fill(~votes, lowest)
        weight = scores.softmax(dim=1) * votes  # [B, K]: the evidence of the prediction

        label = functional.one_hot(batch.memory_target.clamp(min=0), logits.shape[1])  # [B, K, C]
        vote = (weight.unsqueeze(2) * label).sum(dim=1)
        return ClassificationOutput(logits + self.vote_weight * vote, weight)


class SoftVote(ReadsWordVectors, ClassificationTask):
    """`zoo fit --model SoftVote`: its options are those of this constructor, `ReadsWordVectors` and `Task`.

    Example:
        >>> model = SoftVote(sharpness=10.0)
    """

    def __init__(self, sharpness: Positive = 10.0, dropout: float = 0.0, **shared: Any) -> None:
        """Set how the memories vote.

        Args:
            sharpness: factor of the cosines before the softmax.
            dropout: probability of zeroing a component of a word's vector in training.
            **shared: options of `ReadsWordVectors` and `Task`.
        """
        super().__init__(**shared)
        self.sharpness, self.dropout = sharpness, dropout

    def build_network(self, given: Given[ClassificationSpec]) -> nn.Module:
        spec = given.spec
        if spec.memory_labels and spec.memory_labels != spec.labels:
            raise InputError("SoftVote: the memories must have the labels of the texts")
        bag = TextBag(self.make_words(given), dropout=self.dropout)
        return SoftVoteNetwork(bag, spec, self.sharpness)


if __name__ == "__main__":
    sys.exit(main())
