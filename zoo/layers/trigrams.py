"""Word hashing: the product of a matrix and the counts of a word's letter trigrams.

Huang et al.: "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data", CIKM 2013. `cat` with
marks around it, `#cat#`, has the trigrams #ca, cat and at#. The product is a sum of the matrix's rows, computed once
for each distinct word of a batch, without the counts themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.text.trigrams import letter_trigrams


class TrigramLayer(nn.Module):
    """The product of a matrix and words' trigram counts, as sums of the matrix's rows."""

    known: Tensor | None

    def __init__(self, num_chars: int, trigrams: int | Sequence[int], size: int, fan_out: int) -> None:
        """Make the matrix, with a row for each trigram and `size` columns; `fan_out` scales the initial values.

        `trigrams` is the number of buckets that trigrams are hashed into, or the known trigrams, sorted numbers of
        `distinct_trigrams`; others are skipped.
        """
        super().__init__()
        rows = trigrams if isinstance(trigrams, int) else len(trigrams)
        bound = (6 / (rows + fan_out)) ** 0.5
        self.table = nn.Parameter(torch.empty(rows, size).uniform_(-bound, bound))
        self.mark = num_chars
        known = None if isinstance(trigrams, int) else torch.tensor(trigrams, dtype=torch.long)
        self.register_buffer("known", known, persistent=False)

    def forward(self, char: Tensor) -> Tensor:
        """Sum each word's rows: int64 [U, L] character ids to float32 [U, size]; zero for padding."""
        if self.known is None:
            bucket, start = letter_trigrams(char, self.mark, len(self.table))
            return functional.embedding_bag(bucket, self.table, start, mode="sum")
        trigram, start = letter_trigrams(char, self.mark)
        row = torch.searchsorted(self.known, trigram).clamp(max=len(self.known) - 1)
        counts = (self.known[row] == trigram).to(self.table.dtype)
        return functional.embedding_bag(row, self.table, start, mode="sum", per_sample_weights=counts)
