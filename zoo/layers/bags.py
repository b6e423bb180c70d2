"""Bags of words: a text's vector is the mean of its words' vectors, and of its pairs of words if wanted."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.layers.encoders import WordEncoder
from zoo.layers.rows import RowTable, distinct_rows


class BigramTable(RowTable):
    """Vectors of pairs of neighbouring words, hashed: pairs that no table could hold share its rows."""

    def __init__(self, num_rows: int, size: int) -> None:
        """Draw the table.

        Args:
            num_rows: rows; the first is padding.
            size: of a vector.
        """
        super().__init__()
        table = torch.empty(num_rows, size).normal_(std=0.1)
        table[0] = 0
        self.table = nn.Parameter(table)

    def forward(self, rows: Tensor) -> Tensor:
        """Vectors [n, size] of rows [n]; zero for padding."""
        return self.rows(rows) * (rows != 0).unsqueeze(1)

    def numbers(self, word: Tensor, text: Tensor) -> Tensor:
        """Rows of the pairs of words.

        Args:
            word: int64 [U], vocabulary ids of the batch's distinct words.
            text: int64 [N, T], positions in `word`, 0 = padding.

        Returns:
            int64 [N, T - 1], 0 where there is no pair.
        """
        ids = word[text]
        # The usual hash of two whole numbers: each times a large prime of its own, and exclusive or.
        pair = ids[:, :-1] * 73856093 ^ ids[:, 1:] * 19349663
        return (1 + pair % (len(self.table) - 1)) * (text[:, 1:] != 0)


class TextBag(nn.Module):
    """A text's vector: the mean over its words, and the pairs of neighbouring words."""

    def __init__(self, words: WordEncoder, bigrams: int = 0, dropout: float = 0.0) -> None:
        """Put the parts together.

        Args:
            words: their vectors.
            bigrams: rows of a table for pairs of words; 0 = none.
            dropout: probability of zeroing a component of a vector in training; all occurrences of a word or a pair in
                a batch share the mask.
        """
        super().__init__()
        self.words = words
        self.size = words.size
        self.dropout = nn.Dropout(dropout)
        self.bigrams = BigramTable(bigrams, words.size) if bigrams else None

    def forward(self, word: Tensor, text: Tensor) -> Tensor:
        """Encode texts.

        Args:
            word: int64 [U], vocabulary ids of the batch's distinct words.
            text: int64 [N, T], positions in `word`, 0 = padding.

        Returns:
            [N, size]; zero for a text without words.
        """
        # Of the batch's words, those of these texts alone.
        rows, place = distinct_rows(word[text], len(self.words.table))
        total = bag_sum(self.dropout(self.words(rows, rows.new_zeros(len(rows), 0))), place)
        count = (text != 0).sum(dim=1, keepdim=True)
        if self.bigrams is not None and text.shape[1] > 1:
            numbers = self.bigrams.numbers(word, text)
            rows, place = distinct_rows(numbers, len(self.bigrams.table))
            total = total + bag_sum(self.dropout(self.bigrams(rows)), place)
            count = count + (numbers != 0).sum(dim=1, keepdim=True)
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
