"""Texts that differ in a few characters, by MinHash.

The share of equal hashes in two signatures estimates the share of character n-grams that both texts have (A. Broder,
"On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import RowLookup
from datamodules.core.compiled import njit
from datamodules.retrieval.folding import fold, fold_hashes
from datamodules.retrieval.memories.memory import Neighbors

_GRAM = 4
_HASHES = 32
#: The least share of equal hashes of near-duplicates: about two changes in forty characters, ten in two hundred.
_NEAR = 0.55
#: The largest share of the texts that may be in one group.
_LARGEST = 0.5
# Odd factors, so that each permutes the numbers of 32 bits.
_FACTORS = np.random.PCG64(0).random_raw(_HASHES).astype(np.uint32) | np.uint32(1)


def signatures(texts: Iterable[str]) -> NDArray[np.uint32]:
    """Return the signature of each folded text: [n, hashes]. A text without characters has zeros."""
    folded = [fold(text).encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([0, *map(len, folded)])
    return _least_hashes(np.frombuffer(b"".join(folded), np.uint8), ends, _FACTORS)


def are_near(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return whether texts with these signatures [..., hashes] are near-duplicates: bool [...]."""
    return ((first == second).mean(axis=-1) >= _NEAR) & first.any(axis=-1)


def are_near_neighbors(texts: Iterable[str], neighbors: Neighbors) -> NDArray[np.bool_]:
    """Return whether each neighbor of n texts is a near-duplicate of its text: bool [n, k]."""
    own = signatures(texts)
    # Row -1 (no memory) reads the appended signature, which is near to nothing.
    memories = np.concatenate([signatures(neighbors.memories.texts), np.zeros((1, _HASHES), np.uint32)])
    near = np.zeros(neighbors.rows.shape, bool)
    for column, rows in enumerate(neighbors.rows.T):  # all signatures at once would take k times the space
        near[:, column] = are_near(own, memories[rows])
    return near


def group_near_duplicates(
    texts: Sequence[str], keys: NDArray[np.uint64], neighbors: Neighbors | None
) -> RowLookup:
    """Group n texts and what they retrieved: near-duplicates, near-duplicates of these, and so on.

    Args:
        texts: n texts.
        keys: their `fold_hashes` [n].
        neighbors: of each; None = only duplicates are grouped.

    Returns:
        The group 0, 1, ... of each text, in place of a row, by its key.
    """
    memories = np.zeros(0, np.uint64) if neighbors is None else fold_hashes(neighbors.memories.texts)
    distinct, place = np.unique(np.concatenate([keys, memories]), return_inverse=True)
    groups = np.arange(len(distinct), dtype=np.int32)
    if neighbors is not None and len(memories):
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        row, column = np.nonzero(are_near_neighbors(texts, neighbors))
        edges = place[row], place[len(keys) + neighbors.rows[row, column]]
        graph = coo_matrix((np.ones(len(row), bool), edges), shape=(len(distinct), len(distinct)))
        numbers = connected_components(graph, directed=False)[1]
        # Where small differences lead from a text to most others, as in a table of one template, they group nothing.
        if np.bincount(numbers[place[: len(keys)]]).max() <= _LARGEST * len(keys):
            groups = numbers
    return RowLookup(distinct, groups)


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
