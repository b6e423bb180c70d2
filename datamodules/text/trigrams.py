"""Letter trigrams of words: #ca, cat and at# are those of `cat`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def letter_trigrams(char: Tensor, mark: int, buckets: int | None = None) -> tuple[Tensor, Tensor]:
    """Number the letter trigrams of words; a word has as many as characters, and padding has none.

    `char` has character ids, int64 [U, L], 0 = padding. `mark` is the id of the mark before and after a word, greater
    than all others. Trigrams are hashed into `buckets`; None = no two have the same number. Return the numbers of all
    words' trigrams, int64 [G], one word after another, and the start of each word, int64 [U].
    """
    words, longest = char.shape
    lengths = (char != 0).sum(dim=1)
    marked = functional.pad(char, (1, 1))  # [U, L + 2]
    marked[:, 0] = mark
    marked[torch.arange(words, device=char.device), lengths + 1] = mark
    a, b, c = marked[:, :-2], marked[:, 1:-1], marked[:, 2:]
    if buckets is None:
        number = (a * (mark + 1) + b) * (mark + 1) + c
    else:
        # The usual hash of three whole numbers: the exclusive or of their products with three large primes.
        number = (a * 73856093 ^ b * 19349663 ^ c * 83492791) % buckets  # [U, L]
    real = torch.arange(longest, device=char.device) < lengths.unsqueeze(1)
    return number[real], lengths.cumsum(dim=0) - lengths


def distinct_trigrams(char: Tensor, mark: int) -> list[int]:
    """Number the distinct trigrams of words, in ascending order; arguments as for `letter_trigrams`."""
    return torch.unique(letter_trigrams(char, mark)[0]).tolist()
