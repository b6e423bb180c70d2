"""Texts that differ in a few characters, by MinHash.

The share of equal hashes in two signatures estimates the share of character n-grams that both texts have (A. Broder,
"On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from datamodules.core.compiled import njit
from datamodules.retrieval.folding import fold
from datamodules.retrieval.memories.memory import Neighbors

_GRAM = 4
_HASHES = 32
#: The least share of equal hashes of near-duplicates: about two changes in forty characters, ten in two hundred.
_NEAR = 0.55
# Odd factors, so that each permutes the numbers of 32 bits.
_FACTORS = np.random.PCG64(0).random_raw(_HASHES).astype(np.uint32) | np.uint32(1)


def signatures(texts: Iterable[str]) -> NDArray[np.uint32]:
    """Return the signature of each folded text: [n, hashes]. A text without characters has zeros."""
    folded = [fold(text).encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([0, *map(len, folded)])
    return _least_hashes(np.frombuffer(b"".join(folded), np.uint8), ends, _FACTORS)  # type: ignore[no-any-return]


def are_near(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return whether texts with these signatures [..., hashes] are near-duplicates: bool [...]."""
    near: NDArray[np.bool_] = ((first == second).mean(axis=-1) >= _NEAR) & first.any(axis=-1)
    return near


def have_near_duplicates(texts: Iterable[str], neighbors: Neighbors) -> NDArray[np.bool_]:
    """Return whether a near-duplicate of each of n texts is among its neighbors, bool [n]."""
    own = signatures(texts)
    # Row -1 (no memory) reads the appended signature, which is near to nothing.
    memories = np.concatenate([signatures(neighbors.memories.texts), np.zeros((1, _HASHES), np.uint32)])
    near = np.zeros(len(own), bool)
    for rows in neighbors.rows.T:
        near |= are_near(own, memories[rows])
    return near


@njit()
def _least_hashes(data, ends, factors):  # type: ignore[no-untyped-def]
    least = np.zeros((len(ends) - 1, len(factors)), np.uint32)
    for text in range(len(ends) - 1):
        start, end = ends[text], ends[text + 1]
        if start == end:
            continue
        least[text] = np.uint32(0xFFFFFFFF)
        # A text shorter than an n-gram is one.
        for position in range(start, max(start + 1, end - _GRAM + 1)):
            # numba computes in 64 bits: each step is cut back to 32.
            gram = np.uint32(0)
            for byte in data[position : min(position + _GRAM, end)]:
                gram = np.uint32((gram << 8) | byte)
            gram = np.uint32((gram ^ (gram >> 15)) * 0x2C1B3C6D)
            gram = np.uint32(gram ^ (gram >> 12))
            for i in range(len(factors)):
                value = np.uint32(gram * factors[i])
                value = np.uint32((value ^ (value >> 16)) * 0x297A2D39)
                if value < least[text, i]:
                    least[text, i] = value
    return least
