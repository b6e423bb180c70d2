"""A model of your own: the mean of a text's words, and the labels of the memories that are like it.

python examples/your_own_model/soft_vote.py fit --model SoftVote --data ClassificationDataModule --data.train_file FILE
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from zoo.cli import main
from zoo.layers.bags import TextBag
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask
from zoo.tasks.encoders import ReadsWordVectors


class SoftVoteNetwork(nn.Module):
    """B texts of T words, K memories of a text, M distinct ones in the batch, d numbers in a vector, C classes."""

    def __init__(self, bag: TextBag, spec: ClassificationSpec, sharpness: float) -> None:
        super().__init__()
        self.bag, self.sharpness = bag, sharpness
        self.classifier = nn.Linear(bag.size, len(spec.labels))
        self.trust = nn.Parameter(torch.ones(()))  # what a unanimous vote adds to its class

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        text = self.bag(batch.word, batch.text)  # [B, d]
        logits = self.classifier(text)  # [B, C]
        if batch.memory_mask.shape[1] == 0:  # --data.num_memories 0
            return ClassificationOutput(logits, torch.zeros_like(batch.memory_score))

        # A memory that several texts of the batch have is encoded once; where no text has one, row 0 stands for it.
        memories = batch.memory_text if len(batch.memory_text) else batch.text.new_zeros(1, 1)
        memory = self.bag(batch.word, memories)[batch.memory]  # [B, K, d]

        # Places without a memory, and memories without a label, have no vote.
        votes = batch.memory_mask & (batch.memory_target >= 0)  # [B, K]
        like = functional.cosine_similarity(text.unsqueeze(1), memory, dim=2)
        lowest = torch.finfo(like.dtype).min
        weight = (self.sharpness * like).masked_fill(~votes, lowest).softmax(dim=1) * votes  # [B, K]

        label = functional.one_hot(batch.memory_target.clamp(min=0), logits.shape[1])  # [B, K, C]
        vote = (weight.unsqueeze(2) * label).sum(dim=1)
        return ClassificationOutput(
            logits + self.trust * vote, weight
        )  # the weights are the prediction's evidence


class SoftVote(ReadsWordVectors, ClassificationTask):
    """`zoo fit --model SoftVote`: its options are those of this constructor, of `ReadsWordVectors` and of `Task`.

    Example:
        >>> model = SoftVote(sharpness=10.0)
    """

    def __init__(self, sharpness: float = 10.0, dropout: float = 0.0, **shared: Any) -> None:
        """Choose how the memories vote.

        Args:
            sharpness: factor of the cosines before the softmax.
            dropout: probability of zeroing a component of a word's vector in training.
            **shared: options of `ReadsWordVectors` and `Task`.
        """
        super().__init__(**shared)
        if not sharpness > 0:
            raise InputError(f"model.sharpness={sharpness}: must be more than 0")
        self.sharpness, self.dropout = sharpness, dropout

    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        if spec.memory_labels and spec.memory_labels != spec.labels:
            raise InputError("SoftVote: the memories have other labels than the texts, so they cannot vote")
        bag = TextBag(self.make_words(spec, word_vectors), dropout=self.dropout)
        return SoftVoteNetwork(bag, spec, self.sharpness)


if __name__ == "__main__":
    sys.exit(main())
