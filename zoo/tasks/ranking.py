"""What every model that scores pairs of texts needs around its network: losses, metrics, steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.tasks.base import Task


class MatchingOutput(NamedTuple):
    """What a matching network returns."""

    #: float32 [P, spec.num_outputs]: the score of a pair to rank; of a pair to classify, logits of "does not
    #: match" and "matches".
    logits: Tensor
    #: float32 [P, T, S]: how strongly the words of a pair's texts interact, 0 where there is no word; None
    #: where a model compares no words.
    interaction: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """float32 [P]: higher = matches better."""
        if self.logits.shape[1] == 1:
            return self.logits[:, 0]
        return self.logits[:, 1] - self.logits[:, 0]


class MatchingTask(Task):
    """Base of the models that score pairs."""

    task = "matching"
    spec_type = MatchingSpec
    spec: MatchingSpec | None

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Run the network on a batch."""
        assert self.network is not None
        output: MatchingOutput = self.network(batch)
        return output
