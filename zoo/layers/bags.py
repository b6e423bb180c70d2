"""Bags of words: a text's vector is the mean of the vectors of its words; learned, or pre-trained and weighted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch
from zoo.layers.encoders import WordEncoder
from zoo.layers.row_adam import distinct_rows

#: Two odd numbers without a pattern in their bits, which spread neighboring ids over all buckets.
_MULTIPLIERS = (0x9E3779B97F4A7C15 - 2**64, 0xC2B2AE3D27D4EB4F - 2**64)


def bigram_buckets(word: Tensor, text: Tensor, num_buckets: int) -> Tensor:
    """Buckets of the pairs of words in texts [N, T]: int64 [N, T - 1] in 1..num_buckets; 0 where there is no pair."""
    first, second = word[text[:, :-1]], word[text[:, 1:]]
    # Integers overflow in the same way on all devices. The upper bits depend on all bits of both ids.
    mixed = (first * _MULTIPLIERS[0] + second) * _MULTIPLIERS[1]
    bucket = ((mixed >> 32) & 0xFFFFFFFF) % num_buckets + 1
    return bucket * (text[:, 1:] != 0)


class TextBag(nn.Module):
    """A text's vector: the mean over its words and, with buckets, its pairs; occurrences share a dropout mask."""

    def __init__(self, words: WordEncoder, num_buckets: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = words
        self.size = words.size
        self.dropout = nn.Dropout(dropout)
        # Pairs of neighboring words share rows by their hash; row 0 is no pair.
        self.bigrams = WordEncoder(num_buckets + 1, words.size) if num_buckets else None

    def forward(self, word: Tensor, text: Tensor, words_alone: bool = False) -> Tensor:
        """Encode texts: [N, size], zero for a text without words; `words_alone` skips the pairs.

        The batch's distinct words are ids, int64 [U]; texts, int64 [N, T], are positions among them, 0 = padding.
        """
        # On a CPU, only the words of these texts are encoded; on a GPU, finding them takes longer than encoding all.
        on_cpu = text.device.type == "cpu"
        rows, position = distinct_rows(word[text], len(self.words.table)) if on_cpu else (word, text)
        total = functional.embedding_bag(position, self.dropout(self.words(rows)), mode="sum")
        count = (text != 0).sum(dim=1, keepdim=True)
        if self.bigrams is not None and not words_alone and text.shape[1] > 1:
            buckets = bigram_buckets(word, text, len(self.bigrams.table) - 1)
            rows, position = distinct_rows(buckets, len(self.bigrams.table))
            vectors = self.dropout(self.bigrams(rows))
            total = total + functional.embedding_bag(position, vectors, mode="sum")
            count = count + (buckets != 0).sum(dim=1, keepdim=True)
        return total / count.clamp(min=1)


class VectorBag(nn.Module):
    """The mean of pre-trained vectors by inverse document frequency, scaled to length 1; 0 before the fit."""

    idf: Tensor

    def __init__(self, num_words: int) -> None:
        super().__init__()
        self.register_buffer("idf", torch.zeros(num_words))

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
