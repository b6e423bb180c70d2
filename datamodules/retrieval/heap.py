"""The best keys of a query's hits (see `Hits.of_keys`), which compiled searches keep in a heap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datamodules.core.compiled import njit


@njit()
def push(heap: NDArray[np.int64], size: int, key: np.int64) -> int:
    """Add a key to the heap, whose top is the worst hit, and return the new size; a full heap loses its top."""
    if size == len(heap):
        _replace_top(heap, key)
        return size
    slot = size
    while slot > 0 and heap[(slot - 1) >> 1] > key:
        heap[slot] = heap[(slot - 1) >> 1]
        slot = (slot - 1) >> 1
    heap[slot] = key
    return size + 1


@njit()
def _replace_top(heap: NDArray[np.int64], key: np.int64) -> None:
    slot, child = 0, 1
    while child < len(heap):
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[slot] = heap[child]
        slot, child = child, 2 * child + 1
    heap[slot] = key
