"""The nearest of many vectors: a fast pass over all of them, then exact scores of the rows that can be hits.

Without codes the pass is a matrix product of the vectors, whose rounding depends on the number of queries. A row that
could be a hit in spite of it is scored in double precision. So hits and scores are exact, the same for any batch of
queries, and equal for equal vectors. With codes (`Codes`) the pass reads a quarter of the bytes, its best rows are
scored exactly, and others are missed if their codes are too coarse.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import ArrayWriter, damaged, map_array
from datamodules.retrieval.base import LAST_ROW, ExcludedRows, Hits, joined_rows
from datamodules.retrieval.dense.ranking import LEAST_SCORE

Floats: TypeAlias = NDArray[np.float32]
Longs: TypeAlias = NDArray[np.int64]

# Queries and rows of one matrix product: the products, 2 MB, stay in the cache.
_QUERIES = 256
_ROWS = 2048
# Rows of a product for many hits: 64 MB for all queries.
_MOST_ROWS = 1 << 16
# Up to this number of queries, products of whole numbers cost less than a matrix product of the decoded block.
_FEW_QUERIES = 24
_LARGEST_CODE = 127
# float32 adds whole numbers below 2^24 exactly, and so the products of codes up to this length, in any order.
_EXACT_SIZE = 2**24 // _LARGEST_CODE**2

# More than the rounding of scores and of bounds.
_ROUNDING = 2.0**-22


class Codes(NamedTuple):
    """Vectors in a quarter of the bytes: whole numbers of -127..127 times a number for each vector."""

    #: int8 [n, d].
    numbers: NDArray[np.int8]
    #: float32 [n].
    scales: Floats

    @classmethod
    def of(cls, vectors: Floats) -> Codes:
        """Round n vectors [n, d]; the largest number of each becomes 127 or -127."""
        scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(_LARGEST_CODE)
        numbers = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])
        return cls(numbers.astype(np.int8), scales)

    @staticmethod
    def write(folder: Path, vectors: Floats, block: int = 1 << 14) -> None:
        """Write the files that `map` maps."""
        with (
            ArrayWriter(folder / "codes.npy", np.int8, vectors.shape[1:]) as numbers,
            ArrayWriter(folder / "scales.npy", np.float32) as scales,
        ):
            for first in range(0, len(vectors), block):
                codes = Codes.of(vectors[first : first + block])
                numbers.write(codes.numbers)
                scales.write(codes.scales)

    @classmethod
    def map(cls, folder: Path, shape: tuple[int, ...]) -> Codes:
        """Map the codes of vectors of this shape."""
        codes = cls(
            map_array(folder / "codes.npy", np.int8, dimensions=2),
            map_array(folder / "scales.npy", np.float32),
        )
        if codes.numbers.shape != shape:
            raise damaged(folder / "codes.npy", f"has the shape {codes.numbers.shape} instead of {shape}")
        if len(codes.scales) != len(codes.numbers):
            raise damaged(
                folder / "scales.npy", f"has {len(codes.scales)} scales of {len(codes.numbers)} codes"
            )
        return codes

    def products(self, queries: Codes, low: int, block: Floats) -> Floats:
        """Return the products [q, n] with q queries of n rows from `low` on; `block` [n, d] is overwritten."""
        high = low + len(block)
        numbers, scales = self.numbers[low:high], self.scales[low:high]
        few, size = len(queries.numbers) <= _FEW_QUERIES, numbers.shape[1]
        if few or size > _EXACT_SIZE:
            products = np.empty((len(queries.numbers), len(numbers)), np.float32)
            _multiply(queries.numbers, numbers, products)
        else:
            block = block[: len(numbers)]
            block[:] = numbers
            products = queries.numbers.astype(np.float32) @ block.T
        products *= scales
        products *= queries.scales[:, None]
        return products


class _Best(NamedTuple):
    """The best keys of q queries, and some that may not be among the best."""

    #: int64 [q, 2 k + 32]: keys in any order.
    keys: Longs
    #: int64 [q]: the number of keys.
    sizes: Longs
    #: int64 [q]: a key that others must exceed; 0 as long as there may be fewer than k.
    least: Longs
    #: float32 [q]: the products of hits are larger.
    floors: Floats

    @classmethod
    def none(cls, q: int, k: int) -> _Best:
        """Return no keys."""
        keys, sizes = np.zeros((q, 2 * k + 32), np.int64), np.zeros(q, np.int64)
        return cls(keys, sizes, np.zeros_like(sizes), np.full(q, -np.inf, np.float32))

    def largest(self, k: int) -> Longs:
        """Return the largest k keys of each query, in any order [q, k]; 0 where there are fewer."""
        self.keys[np.arange(self.keys.shape[1]) >= self.sizes[:, None]] = 0
        return np.ascontiguousarray(np.partition(self.keys, -k, axis=1)[:, -k:])


def nearest(
    vectors: Floats,
    empty: NDArray[np.integer],
    queries: Floats,
    k: int,
    exclude: ExcludedRows | None = None,
    codes: Codes | None = None,
    oversample: int = 1,
) -> Hits:
    """Return the best k of n vectors [n, d] of length 1 for q queries [q, d], with the scores of `DenseRetriever`.

    The rows `empty`, ascending, are never hits: texts without tokens. A query of length 0 has no hits. With the codes
    of the vectors, only the best `oversample` x k rows by their codes are scored.
    """
    keys = np.zeros((len(queries), k), np.int64)
    most = min(k if codes is None else k * oversample, len(vectors))
    for first in range(0, len(queries) if most else 0, _QUERIES):
        part = slice(first, first + _QUERIES)
        some = np.ascontiguousarray(queries[part], np.float32)
        excluded = joined_rows(None if exclude is None else exclude[part], len(some))
        best = _search(vectors, codes, empty, some, excluded, most)
        if codes is not None:
            _score(best, vectors, some)
        best = -np.sort(-best, axis=1)[:, :k]
        best[~some.any(axis=1)] = 0
        keys[part, : best.shape[1]] = best
    return Hits.of_keys(keys)


def _search(
    vectors: Floats,
    codes: Codes | None,
    empty: NDArray[np.integer],
    queries: Floats,
    excluded: tuple[Longs, Longs],
    k: int,
) -> Longs:
    """Return the keys of the best k vectors, or of the best k codes, for q queries [q, k], in any order."""
    best = _Best.none(len(queries), k)
    # Most rows of a block should be no hits.
    rows = min(max(_ROWS, 8 * k), max(len(vectors), 1), _MOST_ROWS)
    multiply = _products(vectors, codes, queries, rows)
    # The largest error of a product in float32. Codes are compared by their products as they are.
    margin = vectors.shape[1] * 2.0**-24 if codes is None else 0.0
    # Of the best rows of the first block, some may be no hits.
    rank = k + int(np.diff(excluded[0]).max()) + int(np.searchsorted(empty, rows))
    for low in range(0, len(vectors), rows):
        products = multiply(low)
        if low == 0 and rank < products.shape[1]:
            best.floors[:] = np.partition(products, -rank, axis=1)[:, -rank] - 2 * margin - _ROUNDING
        _keep(products, low, margin, codes is None, vectors, queries, empty, *excluded, k, best)
    return best.largest(k)


def _products(vectors: Floats, codes: Codes | None, queries: Floats, rows: int) -> Callable[[int], Floats]:
    """Return a function of a row: the products [q, <= rows] of q queries with the vectors, or codes, from there on."""
    if codes is None:
        return lambda low: queries @ vectors[low : low + rows].T
    coded, block = Codes.of(queries), np.empty((rows, queries.shape[1]), np.float32)
    return lambda low: codes.products(coded, low, block)


@numba.njit(nogil=True, cache=True)
def _multiply(queries: NDArray[np.int8], codes: NDArray[np.int8], products: Floats) -> None:
    """Fill in the products [q, n] of codes [q, d] and [n, d]."""
    for row in range(len(codes)):
        for query in range(len(queries)):
            total = np.int32(0)
            for i in range(codes.shape[1]):
                # numba adds in 64 bits; cut back to 32, the loop compiles to vector instructions for 8-bit numbers.
                total = np.int32(total + np.int32(codes[row, i]) * np.int32(queries[query, i]))
            products[query, row] = total


@numba.njit(nogil=True, cache=True)
def _keep(
    products: Floats,
    low: int,
    margin: float,
    is_exact: bool,
    vectors: Floats,
    queries: Floats,
    empty: NDArray[np.integer],
    excluded_starts: Longs,
    excluded: Longs,
    k: int,
    best: _Best,
) -> None:
    """Add the best rows of a block from `low` on to the best k of each query.

    The key of a row is that of its product, or with `is_exact` of the exact product of its vector and the query.
    """
    for query in range(len(products)):
        keys, size, least, row_products = (
            best.keys[query],
            best.sizes[query],
            best.least[query],
            products[query],
        )
        own = excluded[excluded_starts[query] : excluded_starts[query + 1]]
        bound = max(_bound(least, margin), best.floors[query])
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
                if not part[here] > bound or row in own or _contains(empty, row):
                    continue
                product = np.float64(part[here])
                key = _key(_product(vectors[row], queries[query]) if is_exact else product, row)
                if key <= least:
                    continue
                keys[size] = key
                size += 1
                if size == len(keys):
                    keys[:k] = np.partition(keys, size - k)[size - k :]
                    size, least = k, keys[:k].min()
                    bound = max(bound, _bound(least, margin))
        best.sizes[query], best.least[query] = size, least


@numba.njit(nogil=True, cache=True)
def _score(keys: Longs, vectors: Floats, queries: Floats) -> None:
    """Replace the keys [q, m] by those of the exact products of the same rows; 0 = no row."""
    for query in range(len(keys)):
        for i in range(keys.shape[1]):
            if keys[query, i] > 0:
                row = LAST_ROW - (keys[query, i] & LAST_ROW)
                keys[query, i] = _key(_product(vectors[row], queries[query]), row)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _product(vector: Floats, query: Floats) -> np.float64:
    """Return the product of two vectors in double precision, at most 1."""
    total = np.float64(0)
    for i in range(len(vector)):
        total += np.float64(vector[i]) * np.float64(query[i])
    product: np.float64 = min(total, np.float64(1))
    return product


@numba.njit(nogil=True, cache=True)
def _key(product: np.float64, row: int) -> np.int64:
    """Return the key of a hit, see `Hits.of_keys`."""
    score = np.float32(max((1 + product) / 2, LEAST_SCORE))
    key: np.int64 = np.int64(score.view(np.int32)) << 32 | (LAST_ROW - row)
    return key


@numba.njit(nogil=True, cache=True)
def _bound(least: np.int64, margin: float) -> np.float32:
    """Return a bound, less a margin, that the products of larger keys exceed; 0 is no key."""
    score = np.int32(least >> 32).view(np.float32)
    product = 2 * np.float64(score) - 1 - margin - _ROUNDING if least > 0 else -np.inf
    bound: np.float32 = np.float32(product)
    return bound


@numba.njit(nogil=True, cache=True)
def _contains(ascending: NDArray[np.integer], number: int) -> bool:
    position = np.searchsorted(ascending, number)
    return bool(position < len(ascending) and ascending[position] == number)
