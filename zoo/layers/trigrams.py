"""Word hashing: a word as the counts of its letter trigrams, and what a matrix makes of them.

Huang et al.: "Learning Deep Structured Semantic Models for Web Search using Clickthrough Data", CIKM 2013. `cat` with
marks around it, `#cat#`, has the trigrams #ca, cat and at#. The product of a matrix and such counts is a sum of the
matrix's rows, made once for each distinct word of a batch; the counts themselves never exist.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def letter_trigrams(char: Tensor, mark: int, num_trigrams: int) -> tuple[Tensor, Tensor]:
    """The letter trigrams of words, hashed into buckets.

    Args:
        char: int64 [U, L] character ids, 0 = padding.
        mark: the id of the mark before and after a word; no character has it.
        num_trigrams: number of buckets.

    Returns:
        int64 [G], the buckets of all words' trigrams one after the other, and int64 [U], where each word's
        begin. A word has as many trigrams as characters, and padding has none.
    """
    words, longest = char.shape
    lengths = (char != 0).sum(dim=1)
    marked = functional.pad(char, (1, 1))  # [U, L + 2]
    marked[:, 0] = mark
    marked[torch.arange(words, device=char.device), lengths + 1] = mark
    # The usual hash of three whole numbers: each times a large prime of its own, and exclusive or.
    a, b, c = marked[:, :-2], marked[:, 1:-1], marked[:, 2:]
    bucket = (a * 73856093 ^ b * 19349663 ^ c * 83492791) % num_trigrams  # [U, L]
    real = torch.arange(longest, device=char.device) < lengths.unsqueeze(1)
    return bucket[real], lengths.cumsum(dim=0) - lengths


class TrigramLayer(nn.Module):
    """The product of a matrix and words' trigram counts, as sums of the matrix's rows."""

    def __init__(self, num_chars: int, num_trigrams: int, size: int, fan_out: int) -> None:
        """Make the matrix.

        Args:
            num_chars: character ids are below this.
            num_trigrams: number of buckets.
            size: columns.
            fan_out: units that a column belongs to, for the scale of the initial values.
        """
        super().__init__()
        bound = (6 / (num_trigrams + fan_out)) ** 0.5
        self.table = nn.Parameter(torch.empty(num_trigrams, size).uniform_(-bound, bound))
        self.mark = num_chars

    def forward(self, char: Tensor) -> Tensor:
        """Sum each word's rows: int64 [U, L] character ids to float32 [U, size]; zero for padding."""
        bucket, start = letter_trigrams(char, self.mark, len(self.table))
        return functional.embedding_bag(bucket, self.table, start, mode="sum")
