"""Word hashing: a word as the counts of its letter trigrams, and what a matrix makes of them.

Huang et al.: "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data", CIKM 2013. `cat` with
marks around it, `#cat#`, has the trigrams #ca, cat and at#. The product of a matrix and such counts is a sum of the
matrix's rows, made once for each distinct word of a batch; the counts themselves never exist.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.trigrams import letter_trigrams


class TrigramLayer(nn.Module):
    """The product of a matrix and words' trigram counts, as sums of the matrix's rows."""

    known: Tensor | None

    def __init__(self, num_chars: int, trigrams: int | Sequence[int], size: int, fan_out: int) -> None:
        """Make the matrix.

        Args:
            num_chars: character ids are below this.
            trigrams: number of buckets that trigrams are hashed into; or the trigrams that are known, rising numbers of
                `distinct_trigrams`, with a row each: others count nothing.
            size: columns.
            fan_out: units that a column belongs to, for the scale of the initial values.
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
