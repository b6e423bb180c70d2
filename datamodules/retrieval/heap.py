"""The best keys of a query's hits (see `Hits.of_keys`), which compiled searches keep in a heap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datamodules.core.compiled import njit


@njit()
def push(heap: NDArray[np.int64], key: np.int64) -> None:
    """Replace the top of the heap, which is the worst hit or 0 = none yet, by a larger key."""
    slot, child = 0, 1
    while child < len(heap):
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[slot] = heap[child]
        slot, child = child, 2 * child + 1
    heap[slot] = key
