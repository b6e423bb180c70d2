"""The search of vectors compared with sorted scores in double precision."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules.retrieval.base import Hits
from datamodules.retrieval.dense import nearest as search
from datamodules.retrieval.dense.nearest import nearest
from datamodules.retrieval.dense.ranking import LEAST_SCORE

Vectors = NDArray[np.float32]
NO_ROWS = np.empty(0, np.int32)


def unit(vectors: NDArray[np.floating]) -> Vectors:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def mixture(n: int, size: int, seed: int) -> Vectors:
    """Vectors around 20 centers."""
    centers = np.random.default_rng(0).normal(size=(20, size))
    rng = np.random.default_rng(seed)
    return unit(centers[rng.integers(20, size=n)] + rng.normal(size=(n, size)))


def sorted_hits(
    vectors: Vectors, empty: NDArray[np.int32], queries: Vectors, k: int, exclude: list[list[int]]
) -> Hits:
    """All rows sorted by their scores, in double precision until they are rounded, and by their numbers."""
    hits = Hits.none(len(queries), k)
    for query, vector in enumerate(queries):
        products = vectors.astype(np.float64) @ vector.astype(np.float64)
        scores = np.clip((1 + products) / 2, LEAST_SCORE, 1).astype(np.float32)
        dropped = {*empty.tolist(), *exclude[query], *(range(len(vectors)) if not vector.any() else ())}
        order = [row for row in np.lexsort((np.arange(len(scores)), -scores)).tolist() if row not in dropped]
        hits.rows[query, : len(order[:k])] = order[:k]
        hits.scores[query, : len(order[:k])] = scores[order[:k]]
    return hits


def assert_same(hits: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_array_equal(hits.scores, expected.scores)


@pytest.mark.parametrize("size", [3, 64, 385])
@pytest.mark.parametrize("blocks", [(256, 2048), (4, 70)])
def test_hits_are_exact(monkeypatch: pytest.MonkeyPatch, size: int, blocks: tuple[int, int]) -> None:
    for name, value in zip(("_QUERIES", "_ROWS"), blocks, strict=True):
        monkeypatch.setattr(search, name, value)
    vectors, queries = mixture(300, size, 1), mixture(9, size, 2)
    vectors[[7, 90, 250]] = vectors[13]  # equal scores, in several blocks
    vectors[20] = -queries[0]
    queries[3], queries[4] = vectors[13], 0
    empty = np.array([0, 5, 299], np.int32)
    vectors[empty] = 0
    rng = np.random.default_rng(0)
    exclude = [rng.choice(300, size=n, replace=False).tolist() for n in (0, 3, 290, 0, 1, 0, 300, 50, 2)]
    for excluded in (None, exclude):
        for k in (0, 1, 20, 300, 400):
            expected = sorted_hits(vectors, empty, queries, k, excluded or [[] for _ in queries])
            assert_same(nearest(vectors, queries, k, excluded), expected)


def test_hits_are_exact_below_the_rounding_of_the_matrix_product() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=200)
    vectors = unit(base + 3e-4 * rng.normal(size=(5000, 200)))
    queries = unit(base + 3e-4 * rng.normal(size=(30, 200)))
    rounded = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    hits = nearest(vectors, queries, 10)
    assert (rounded != hits.rows).any()  # scores are nearer to each other than that
    assert_same(hits, sorted_hits(vectors, NO_ROWS, queries, 10, [[]] * 30))


def test_hits_depend_neither_on_the_batch_nor_on_threads() -> None:
    vectors, queries = mixture(3000, 40, 1), mixture(40, 40, 2)
    whole = nearest(vectors, queries, 10)
    for batch in (1, 7):
        for first in range(0, 40, batch):
            part = nearest(vectors, queries[first : first + batch], 10)
            assert_same(part, Hits(whole.rows[first : first + batch], whole.scores[first : first + batch]))
    with ThreadPoolExecutor(4) as pool:
        for hits in pool.map(lambda _: nearest(vectors, queries, 10), range(8)):
            assert_same(hits, whole)
