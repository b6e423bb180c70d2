"""Document frequencies and counts of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datamodules.core.compiled import njit


@njit()
def count_tokens(
    tokens: NDArray[np.int32], offsets: NDArray[np.int64], num_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the texts with each token, and its occurrences in all texts; both int64 [num_tokens].

    Text i is `tokens[offsets[i]:offsets[i + 1]]`; a token is in 0..num_tokens - 1.
    """
    texts = np.zeros(num_tokens, np.int64)
    occurrences = np.zeros(num_tokens, np.int64)
    last = np.full(num_tokens, -1, np.int32)
    for text in range(len(offsets) - 1):
        for position in range(offsets[text], offsets[text + 1]):
            token = tokens[position]
            occurrences[token] += 1
            if last[token] != text:
                last[token] = text
                texts[token] += 1
    return texts, occurrences
