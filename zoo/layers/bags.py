"""Bags of words: a text's vector is the mean of its words' vectors, and of its pairs of words if wanted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.layers.encoders import WordEncoder
from zoo.layers.row_adam import RowTable, distinct_rows

#: Two odd numbers without a pattern in their bits: what neighbouring ids are spread over all buckets by.
_MULTIPLIERS = (0x9E3779B97F4A7C15 - 2**64, 0xC2B2AE3D27D4EB4F - 2**64)


def bigram_buckets(word: Tensor, text: Tensor, num_buckets: int) -> Tensor:
    """The bucket of each pair of neighbouring words.

    Args:
        word: int64 [U], vocabulary ids of the batch's distinct words.
        text: int64 [B, T], positions in `word`, 0 = padding.
        num_buckets: different buckets.

    Returns:
        int64 [B, T - 1] in 1..num_buckets; 0 where there is no pair.
    """
    first, second = word[text[:, :-1]], word[text[:, 1:]]
    # Whole numbers overflow alike everywhere. The upper bits depend on all bits of both ids.
    mixed = (first * _MULTIPLIERS[0] + second) * _MULTIPLIERS[1]
    bucket = ((mixed >> 32) & 0xFFFFFFFF) % num_buckets + 1
    return bucket * (text[:, 1:] != 0)


class BigramTable(RowTable):
    """Vectors of pairs of neighbouring words; pairs share rows by their hash."""

    def __init__(self, num_buckets: int, size: int) -> None:
        """Draw the table.

        Args:
            num_buckets: rows that pairs share; row 0, before them, is no pair.
            size: of a vector.
        """
        super().__init__()
        table = torch.empty(num_buckets + 1, size).normal_(std=0.1)
        table[0] = 0
        self.table = nn.Parameter(table)

    def forward(self, rows: Tensor) -> Tensor:
        """Vectors [n, size] of rows [n]; zero for no pair."""
        vectors: Tensor = self.rows(rows)
        return vectors * (rows != 0).unsqueeze(1)


class TextBag(nn.Module):
    """A text's vector: the mean over its words, and the pairs of neighbouring words."""

    def __init__(self, words: WordEncoder, num_buckets: int = 0, dropout: float = 0.0) -> None:
        """Put the parts together.

        Args:
            words: their vectors.
            num_buckets: rows that pairs of words share; 0 = pairs are not read.
            dropout: probability of zeroing a component of a vector in training; all occurrences of a word or a pair in
                a batch share the mask.
        """
        super().__init__()
        self.words = words
        self.size = words.size
        self.dropout = nn.Dropout(dropout)
        self.bigrams = BigramTable(num_buckets, words.size) if num_buckets else None

    def forward(self, word: Tensor, text: Tensor, words_alone: bool = False) -> Tensor:
        """Encode texts.

        Args:
            word: int64 [U], vocabulary ids of the batch's distinct words.
            text: int64 [N, T], positions in `word`, 0 = padding.
            words_alone: read no pairs.

        Returns:
            [N, size]; zero for a text without words.
        """
        # Of the batch's words, those of these texts alone.
        rows, place = distinct_rows(word[text], len(self.words.table))
        total = bag_sum(self.dropout(self.words(rows, rows.new_zeros(len(rows), 0))), place)
        count = (text != 0).sum(dim=1, keepdim=True)
        if self.bigrams is not None and not words_alone and text.shape[1] > 1:
            buckets = bigram_buckets(word, text, len(self.bigrams.table) - 1)
            rows, place = distinct_rows(buckets, len(self.bigrams.table))
            total = total + bag_sum(self.dropout(self.bigrams(rows)), place)
            count = count + (buckets != 0).sum(dim=1, keepdim=True)
        return total / count.clamp(min=1)


def bag_sum(vectors: Tensor, bags: Tensor) -> Tensor:
    """Sums of rows.

    Args:
        vectors: [V, d]; that of padding is 0.
        bags: int64 [N, T], rows of `vectors`.

    Returns:
        [N, d].
    """
    return functional.embedding_bag(bags, vectors, mode="sum")
