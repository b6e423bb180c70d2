"""The nearest of many vectors: a fast pass over all of them, then exact scores of the rows that can be hits.

The pass is a matrix product of the vectors, whose rounding depends on the number of queries. A row that could be a hit
in spite of it is scored in double precision. Therefore hits and scores are exact, the same for any batch of queries,
and equal for equal vectors.
"""

from __future__ import annotations

import numpy as np

from datamodules.core.arrays import Floats, Longs
from datamodules.core.compiled import njit
from datamodules.retrieval.base import LAST_ROW, ExcludedRows, Hits, joined_rows
from datamodules.retrieval.dense.ranking import LEAST_SCORE
from datamodules.retrieval.heap import push

# Queries and rows of one matrix product: the products, 2 MB, stay in the cache.
_QUERIES = 256
_ROWS = 2048
# Rows of a product for many hits: 64 MB for all queries.
_MOST_ROWS = 1 << 16
# More than the rounding of scores and of bounds.
_ROUNDING = 2.0**-22


def nearest(vectors: Floats, queries: Floats, k: int, exclude: ExcludedRows | None = None) -> Hits:
    """Return the best k of n vectors [n, d] of length 1 for q queries [q, d], with the scores of `DenseRetriever`.

    A vector of length 0, of a text without tokens, is never a hit. A query of length 0 has no hits.
    """
    keys = np.zeros((len(queries), k), np.int64)
    most = min(k, len(vectors))
    searched = np.flatnonzero(queries.any(axis=1)) if most else np.empty(0, np.int64)
    for first in range(0, len(searched), _QUERIES):
        part = searched[first : first + _QUERIES]
        some = np.ascontiguousarray(queries[part], np.float32)
        excluded = joined_rows(None if exclude is None else [exclude[query] for query in part], len(part))
        keys[part, :most] = -np.sort(-_search(vectors, some, excluded, most), axis=1)
    return Hits.of_keys(keys)


def _search(vectors: Floats, queries: Floats, excluded: tuple[Longs, Longs], k: int) -> Longs:
    """Return the keys of the best k vectors for q queries [q, k], in any order."""
    heaps = np.zeros((len(queries), k), np.int64)
    # The products of hits are larger.
    floors = np.full(len(queries), -np.inf, np.float32)
    # Most rows of a block should be no hits.
    rows = min(max(_ROWS, 8 * k), len(vectors), _MOST_ROWS)
    # The largest error of a product in float32.
    margin = vectors.shape[1] * 2.0**-24
    for low in range(0, len(vectors), rows):
        products = queries @ vectors[low : low + rows].T
        if low == 0:
            # Of the best rows of the first block, some may be no hits: excluded ones, and those of length 0.
            rank = k + int(np.diff(excluded[0]).max()) + np.count_nonzero(products[0] == 0)
            if rank < products.shape[1]:
                floors = np.partition(products, -rank, axis=1)[:, -rank] - 2 * margin - _ROUNDING
        _keep(products, low, margin, vectors, queries, *excluded, heaps, floors)
    return heaps


@njit()
def _keep(
    products: Floats,
    low: int,
    margin: float,
    vectors: Floats,
    queries: Floats,
    excluded_starts: Longs,
    excluded: Longs,
    heaps: Longs,
    floors: Floats,
) -> None:
    """Push the best rows of a block from `low` on, by exact products, into the heap of each query."""
    for query in range(len(products)):
        heap, row_products = heaps[query], products[query]
        own = excluded[excluded_starts[query] : excluded_starts[query + 1]]
        bound = max(_bound(heap, margin), floors[query])
        for first in range(0, len(row_products), 64):
            part = row_products[first : first + 64]
            # This loop is compiled to vector instructions. Few blocks contain a candidate.
            candidates = 0
            for here in range(len(part)):
                candidates += part[here] > bound
            if candidates == 0:
                continue
            for here in range(len(part)):
                row = low + first + here
                if not part[here] > bound or row in own or not vectors[row].any():
                    continue
                key = _key(_product(vectors[row], queries[query]), row)
                if key > heap[0]:
                    push(heap, key)
                    bound = max(bound, _bound(heap, margin))


@njit(fastmath={"reassoc", "contract"})
def _product(vector: Floats, query: Floats) -> np.float64:
    """Return the product of two vectors in double precision, at most 1."""
    total = np.float64(0)
    for i in range(len(vector)):
        total += np.float64(vector[i]) * np.float64(query[i])
    return min(total, np.float64(1))


@njit()
def _key(product: np.float64, row: int) -> np.int64:
    """Return the key of a hit, see `Hits.of_keys`."""
    score = np.float32(max((1 + product) / 2, LEAST_SCORE))
    return np.int64(score.view(np.int32)) << 32 | (LAST_ROW - row)


@njit()
def _bound(heap: Longs, margin: float) -> np.float32:
    """Return a bound, less a margin, that the products of further keys exceed."""
    score = np.int32(heap[0] >> 32).view(np.float32)
    return np.float32(2 * np.float64(score) - 1 - margin - _ROUNDING)
