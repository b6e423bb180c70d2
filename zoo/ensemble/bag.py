"""A text as the mean of its words' vectors, rare words counting for more.

The vectors are pre-trained ones that training leaves as they are; how rare a word is, the training texts tell (their
inverse document frequency). Nothing here reads a label.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch
from zoo.layers.encoders import WordEncoder


class BagOfVectors(nn.Module):
    """The weighed mean of word vectors, of length 1; until it is fitted every text is 0."""

    idf: Tensor

    def __init__(self, num_words: int) -> None:
        """Make room for V words' weights."""
        super().__init__()
        self.register_buffer("idf", torch.zeros(num_words), persistent=False)

    def fit(self, batches: Iterable[ClassificationBatch], has_vector: Tensor) -> None:
        """Count in how many texts each word is: idf = 1 + log((1 + n) / (1 + df)).

        Args:
            batches: all n training texts.
            has_vector: bool [V]; the other words, whose vectors were drawn, count for nothing.
        """
        frequency, n = np.zeros(len(self.idf), np.int64), 0
        for batch in batches:
            words, texts = batch.word.cpu().numpy(), batch.text.cpu().numpy()
            rows = np.broadcast_to(np.arange(len(texts))[:, None], texts.shape)
            once = np.unique(np.stack([rows[texts != 0], texts[texts != 0]]), axis=1)[1]
            np.add.at(frequency, words[once], 1)
            n += len(texts)
        idf = 1.0 + np.log((1 + n) / (1 + frequency))
        self.idf = (torch.from_numpy(idf).float() * has_vector).to(self.idf.device)

    def forward(self, batch: ClassificationBatch, words: WordEncoder) -> Tensor:
        """float32 [B, d]; 0 for a text without a word that has a vector."""
        weighed = words.rows(batch.word).float() * self.idf[batch.word].unsqueeze(1)  # [U, d]
        sums = functional.embedding_bag(batch.text, weighed, mode="sum", padding_idx=0)
        return functional.normalize(sums, dim=1)

    def get_extra_state(self) -> dict[str, Any]:
        """For the state dict."""
        return {"idf": self.idf.cpu()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """From the state dict."""
        self.idf = state["idf"].to(self.idf.device)
