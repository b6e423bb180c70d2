"""The formulas of Lucene 9 (SmallFloat, BM25Similarity, LMDirichletSimilarity), rounded alike.

The `boost` of a term is the number of times that a query has it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datamodules.core.compiled import njit
from datamodules.retrieval.base import Ranking


def _lengths() -> NDArray[np.int64]:
    """Return the length for each byte: exact up to 39, then a floating-point number with 3 bits of fraction."""
    exact = 24
    values = list(range(exact))
    for code in range(256 - exact):
        bits, shift = code & 7, (code >> 3) - 1
        values.append(exact + (bits if shift < 0 else (bits | 8) << shift))
    return np.array(values, np.int64)


#: int64 [256]: the document length, in terms, for each byte.
LENGTHS = _lengths()


def length_bytes(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encode document lengths as one byte each, rounded down; `LENGTHS` decodes them."""
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def term_weights(
    ranking: Ranking, texts: int, tokens: int, rows: NDArray[np.int64], occurrences: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return BM25's idf, or LMDirichlet's mu times the probability of the term, [terms].

    The collection has so many non-empty `texts` (Lucene does not count others) and `tokens`. A term is in `rows` texts.
    """
    if ranking.similarity == "BM25":
        idf = np.log(1 + (texts - rows + 0.5) / (rows + 0.5)).astype(np.float32)
        return np.asarray(idf, np.float64)
    probability = (occurrences + 1.0) / (tokens + 1.0)
    return np.asarray(np.float64(np.float32(ranking.mu)) * probability)


def length_weights(ranking: Ranking, texts: int, tokens: int) -> NDArray[np.float64]:
    """Return BM25's factor of the term frequency, or LMDirichlet's logarithm, [256], by the byte of the length."""
    if ranking.similarity == "BM25":
        k1, b = np.float32(ranking.k1), np.float32(ranking.b)
        average = np.float32(tokens / max(texts, 1))
        with np.errstate(divide="ignore", invalid="ignore"):  # k1 = 0: infinite; no documents: unused
            norms = k1 * ((np.float32(1) - b) + b * LENGTHS.astype(np.float32) / average)
            weights: NDArray[np.float64] = (np.float32(1) / norms).astype(np.float64)
        return weights
    mu = np.float64(np.float32(ranking.mu))
    return np.asarray(np.log(mu / (LENGTHS + mu)))


def factor(ranking: Ranking) -> np.float32:
    """Return k1 + 1, by which Elasticsearch multiplies BM25; 0 for LMDirichlet."""
    return np.float32(1) + np.float32(ranking.k1) if ranking.similarity == "BM25" else np.float32(0)


@njit()
def contribution(
    term_weight: float, length_weight: float, frequency: int, boost: np.float32, factor: np.float32
) -> np.float32:
    """Return the contribution of a term to a score, by its two weights and `factor`; never negative."""
    if factor == 0:
        return np.float32(boost * max(0.0, np.log(1 + frequency / term_weight) + length_weight))
    weight = boost * factor * np.float32(term_weight)
    saturation = np.float32(1) + np.float32(frequency) * np.float32(length_weight)
    return np.float32(weight - weight / saturation)
