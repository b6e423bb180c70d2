"""Output of the matching networks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class MatchingOutput(NamedTuple):
    """Output of a matching network."""

    #: float32 [P, spec.num_outputs]: the score of a pair to rank; of a pair to classify, logits of "does not
    #: match" and "matches".
    logits: Tensor
    #: float32 [P, T, S]: strength of the interaction of the words of a pair's texts, 0 where there is no word; None
    #: where a model compares no words.
    interaction: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """float32 [P]: higher = matches better."""
        if self.logits.shape[1] == 1:
            return self.logits[:, 0]
        return self.logits[:, 1] - self.logits[:, 0]
