"""Hiding whole texts from a classifier in training, so that it learns to read their memories."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TextDropout(nn.Module):
    """Zeroes the vectors of some training examples: their class must be read off the memories."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, text: Tensor) -> Tensor:
        """Zero some rows of texts [B, d]; the others are not scaled."""
        if not self.training or self.probability == 0:
            return text
        return text * (torch.rand(len(text), 1, device=text.device) >= self.probability)
