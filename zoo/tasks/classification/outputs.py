"""Output of the classification networks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ClassificationOutput(NamedTuple):
    """Output of a classification network."""

    #: float32 [B, C].
    logits: Tensor
    #: float32 [B, K]: weight of each memory; 0 where there is none.
    memory_weight: Tensor
    #: float32 [B, H, K]: the weights in each of H hops; None where a network reads its memories once.
    hop_weight: Tensor | None = None
