"""A text as the mean of its words' pre-trained vectors, weighted by inverse document frequency."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch
from datamodules.core.types import PlainDict
from zoo.layers.encoders import WordEncoder


class VectorBag(nn.Module):
    """The weighted mean of word vectors, scaled to length 1; every text is 0 until the fit."""

    idf: Tensor

    def __init__(self, num_words: int) -> None:
        super().__init__()
        self.register_buffer("idf", torch.zeros(num_words), persistent=False)

    def fit(self, batches: Iterable[ClassificationBatch], has_vector: Tensor) -> None:
        """Compute idf = 1 + log((1 + n) / (1 + df)) from n training texts; 0 where `has_vector`, bool [V], is False."""
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
        weighted = words.rows(batch.word).float() * self.idf[batch.word].unsqueeze(1)  # [U, d]
        sums = functional.embedding_bag(batch.text, weighted, mode="sum", padding_idx=0)
        return functional.normalize(sums, dim=1)

    def get_extra_state(self) -> PlainDict:
        """The weights, for the state dict."""
        return {"idf": self.idf.cpu()}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the weights of a state dict."""
        self.idf = state["idf"].to(self.idf.device)
