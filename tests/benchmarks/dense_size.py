"""Embedded dense search of many vectors against numpy and faiss.

Vectors are draws of a mixture: a center from a normal distribution for 1,000 vectors, and around it normal deviations
of the same length; queries are further draws. With --embeddings, the vectors that `zoo encode` wrote, whose last rows
are the queries. Contenders are measured alternately on one thread: CPU seconds of a search of 1, 20 and 256 queries
(top 20, the best of --rounds), as multiples of those that add up all vectors once (`numpy.sum`, the pass). For all, the
recall of the 20 nearest and the bytes a vector that a search keeps in memory.

    python -m tests.benchmarks.dense_size [--peers FOLDER_WITH_FAISS] [--vectors 1000000] [--indexes ivf hnsw]
        [--embeddings FOLDER]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import ArrayWriter, map_array
from datamodules.retrieval.dense.nearest import nearest
from tests.benchmarks.timing import alternate, parser

K, BATCHES = 20, (1, 20, 256)
PER_CENTER = 1000
_BLOCK = 1 << 14

Vectors: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.integer[Any]]


class Contender(NamedTuple):
    """A search of queries [q, d]: the rows of their nearest vectors [q, K]; bytes a vector that it needs."""

    name: str
    search: Callable[[Vectors], Rows]
    bytes_a_vector: float


def draw(n: int, centers: Vectors, seed: int) -> Iterator[Vectors]:
    """Yield n vectors of the mixture, of length 1, in blocks."""
    rng = np.random.default_rng(seed)
    for first in range(0, n, _BLOCK):
        part = rng.standard_normal((min(_BLOCK, n - first), centers.shape[1]), dtype=np.float32)
        part += centers[rng.integers(len(centers), size=len(part))]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        yield part


def given_vectors(options: argparse.Namespace, folder: Path) -> tuple[Vectors, Vectors]:
    """Return the vectors of --embeddings, or drawn ones in a file of the folder; and 256 others as queries."""
    if options.embeddings:
        vectors: Vectors = map_array(options.embeddings / "vectors.npy", np.float32, dimensions=2)
        return vectors[: -BATCHES[-1]], vectors[-BATCHES[-1] :]
    n, size = options.vectors, options.size
    centers = np.random.default_rng(0).standard_normal((max(1, n // PER_CENTER), size), dtype=np.float32)
    with ArrayWriter(folder / "vectors.npy", np.float32) as writer:
        for block in draw(n, centers, 1):
            writer.write(block)
    queries = np.concatenate(list(draw(BATCHES[-1], centers, 2)))
    return map_array(folder / "vectors.npy", np.float32, dimensions=2), queries


def by_numpy(vectors: Vectors, queries: Vectors) -> Rows:
    """Search by a matrix product and a partial sort; 32 queries at a time, to limit the memory."""
    best = np.empty((len(queries), K), np.int64)
    for first in range(0, len(queries), 32):
        scores = queries[first : first + 32] @ vectors.T
        rows = np.argpartition(scores, len(vectors) - K, axis=1)[:, len(vectors) - K :]
        order = np.argsort(-np.take_along_axis(scores, rows, 1), axis=1)
        best[first : first + 32] = np.take_along_axis(rows, order, 1)
    return best


def by_faiss(index: Any, part: Any, option: str, value: int, queries: Vectors) -> Rows:
    """Search an index, after an option of it, or of a part of it, has a value."""
    setattr(part, option, value)
    return index.search(queries, K)[1]


def peers(vectors: Vectors, indexes: Sequence[str]) -> Iterator[Contender]:
    """The exact search of faiss, and indexes with usual parameters."""
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(1)
    (n, size), product = vectors.shape, faiss.METRIC_INNER_PRODUCT
    # The search of an IndexFlatIP, without its copy of the vectors.
    yield Contender("faiss flat", lambda queries: faiss.knn(queries, vectors, K, metric=product)[1], 4 * size)
    lists = max(1, int(4 * n**0.5) // 4)
    for name in indexes:
        start = time.perf_counter()
        if name == "ivf":
            index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, lists, product)
            index.train(vectors[np.random.default_rng(0).permutation(n)[: 40 * lists]])
            part, option, values, extra = index, "nprobe", (16, 64), 8.0
        else:
            index = faiss.IndexHNSWFlat(size, 16, product)
            index.hnsw.efConstruction = 40
            part, option, values, extra = index.hnsw, "efSearch", (64, 256), 32 * 4 * 17 / 16
        for first in range(0, n, _BLOCK):
            index.add(vectors[first : first + _BLOCK])
        print(f"faiss {name} ({lists} lists, M 16): built in {time.perf_counter() - start:.0f} s", flush=True)
        for value in values:
            search = partial(by_faiss, index, part, option, value)
            yield Contender(f"faiss {name}, {option} {value}", search, 4 * size + extra)


def measure(vectors: Vectors, queries: Vectors, contenders: list[Contender], rounds: int) -> None:
    exact = nearest(vectors, queries, K).rows
    works: dict[Any, Callable[[], object]] = {"pass": vectors.sum}
    for name, search, _ in contenders:
        works |= {(name, batch): partial(search, queries[:batch]) for batch in BATCHES}
    best: dict[Any, float] = alternate(works, rounds, warm_up=1, statistic=np.min)
    print(f"{len(vectors)} vectors of {vectors.shape[1]}; pass {best['pass']:.3f} s,", end=" ")
    print(f"{vectors.nbytes / best['pass'] / 1e9:.1f} GB/s. Passes for 1, 20 and 256 queries:")
    for name, search, size in contenders:
        recall = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(search(queries), exact, strict=True)])
        passes = "".join(f"{best[name, batch] / best['pass']:9.3f}" for batch in BATCHES)
        print(
            f"{name:26}{passes}  {BATCHES[-1] / best[name, BATCHES[-1]]:7.0f} queries/s,"
            f" recall@{K} {recall:.4f}, {size:5.0f} bytes a vector",
            flush=True,
        )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--vectors", type=int, default=1_000_000)
    arguments.add_argument("--size", type=int, default=384)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--peers", help="folder with faiss-cpu")
    arguments.add_argument("--indexes", nargs="*", choices=["ivf", "hnsw"], default=["ivf"], help="of faiss")
    arguments.add_argument("--embeddings", type=Path, help="folder of `zoo encode`, instead of drawn vectors")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vectors, queries = given_vectors(given, Path(folder))
        size = 4 * vectors.shape[1]
        contenders = [
            Contender("exact", lambda queries: nearest(vectors, queries, K).rows, size),
            Contender("numpy", lambda queries: by_numpy(vectors, queries), size),
        ]
        if given.peers:
            sys.path.append(given.peers)
            contenders += peers(vectors, given.indexes)
        measure(vectors, queries, contenders, given.rounds)


if __name__ == "__main__":
    main()
