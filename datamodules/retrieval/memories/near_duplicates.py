"""Texts that differ in a few characters, by MinHash.

A text's signature is the least hash of its character n-grams, for each of many hash functions. Two texts have equal
places in their signatures about as often as an n-gram of either is one of both (A. Broder, "On the resemblance and
containment of documents", 1997). A changed character changes n of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from datamodules.retrieval.folding import fold
from datamodules.retrieval.memories.memory import Neighbors

_GRAM = 4
_PLACES = 32
#: The share of equal places from which on texts are near: about two changes in forty characters, ten in two hundred.
_NEAR = 0.55
# Odd factors, so that each permutes the numbers of 32 bits.
_FACTORS = np.random.PCG64(0).random_raw(_PLACES).astype(np.uint32) | np.uint32(1)


def signatures(texts: Iterable[str]) -> NDArray[np.uint32]:
    """The signature of each text, folded as copies are: [n, places]. A text without characters has zeros."""
    folded = [fold(text).encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([0, *map(len, folded)])
    return _least_hashes(np.frombuffer(b"".join(folded), np.uint8), ends, _FACTORS)  # type: ignore[no-any-return]


def are_near(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether texts with these signatures [..., places] differ in a few characters at most: bool [...]."""
    near: NDArray[np.bool_] = ((one == other).mean(axis=-1) >= _NEAR) & one.any(axis=-1)
    return near


def nearly_found(texts: Iterable[str], found: Neighbors) -> NDArray[np.bool_]:
    """Whether a memory of a text is nearly the text, bool [n]. A near-copy has most words, so it is among the best.

    Args:
        texts: n texts.
        found: their memories.
    """
    own = signatures(texts)
    # Row -1 (no memory) reads the appended one, which is near to nothing.
    memories = np.concatenate([signatures(found.memories.texts), np.zeros((1, _PLACES), np.uint32)])
    near = np.zeros(len(own), bool)
    for rows in found.rows.T:
        near |= are_near(own, memories[rows])
    return near


@njit(cache=True, nogil=True)
def _least_hashes(data, ends, factors):  # type: ignore[no-untyped-def]
    found = np.zeros((len(ends) - 1, len(factors)), np.uint32)
    for text in range(len(ends) - 1):
        start, end = ends[text], ends[text + 1]
        if start == end:
            continue
        found[text] = np.uint32(0xFFFFFFFF)
        # A text shorter than an n-gram is one.
        for place in range(start, max(start + 1, end - _GRAM + 1)):
            # numba computes in 64 bits: each step is cut back to 32.
            gram = np.uint32(0)
            for byte in data[place : min(place + _GRAM, end)]:
                gram = np.uint32((gram << 8) | byte)
            gram = np.uint32((gram ^ (gram >> 15)) * 0x2C1B3C6D)
            gram = np.uint32(gram ^ (gram >> 12))
            for i in range(len(factors)):
                value = np.uint32(gram * factors[i])
                value = np.uint32((value ^ (value >> 16)) * 0x297A2D39)
                if value < found[text, i]:
                    found[text, i] = value
    return found
