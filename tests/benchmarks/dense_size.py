"""Embedded dense search of many vectors against numpy and faiss.

Vectors are draws of a mixture: a center from a normal distribution for 1,000 vectors, and around it normal deviations
of the same length; queries are further draws. With --embeddings, the vectors that `zoo encode` wrote, whose last rows
are the queries. Contenders are measured alternately on one thread: CPU seconds of a search of 1, 20 and 256 queries
(top 20, the best of --rounds), as multiples of those that add up all vectors once (`numpy.sum`, the pass). For all, the
recall of the 20 nearest and the bytes a vector that a search keeps in memory.

    python -m tests.benchmarks.dense_size [--peers FOLDER_WITH_FAISS] [--vectors 1000000] [--indexes ivf hnsw]
        [--embeddings FOLDER]
"""

from __future__ import annotations

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

K, BATCHES = 20, (1, 20, 256)
PER_CENTER = 1000
_BLOCK = 1 << 14
NO_ROWS = np.empty(0, np.int32)

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


def drawn(n: int, size: int, folder: Path) -> tuple[Vectors, Vectors]:
    """Return n vectors, mapped from a file in the folder, and 256 queries of the mixture."""
    centers = np.random.default_rng(0).standard_normal((max(1, n // PER_CENTER), size), dtype=np.float32)
    with ArrayWriter(folder / "vectors.npy", np.float32) as writer:
        for block in draw(n, centers, 1):
            writer.write(block)
    queries = np.concatenate(list(draw(BATCHES[-1], centers, 2)))
    return map_array(folder / "vectors.npy", np.float32, dimensions=2), queries


def read(folder: Path) -> tuple[Vectors, Vectors]:
    """Return the vectors of embeddings, and the last 256 of them as queries."""
    vectors: Vectors = map_array(folder / "vectors.npy", np.float32, dimensions=2)
    return vectors[: -BATCHES[-1]], vectors[-BATCHES[-1] :]


def by_numpy(vectors: Vectors, queries: Vectors) -> Rows:
    """Search by a matrix product and a partial sort; 32 queries at a time, to limit the memory."""
    best = np.empty((len(queries), K), np.int64)
    for first in range(0, len(queries), 32):
        scores = queries[first : first + 32] @ vectors.T
        rows = np.argpartition(scores, len(vectors) - K, axis=1)[:, len(vectors) - K :]
        order = np.argsort(-np.take_along_axis(scores, rows, 1), axis=1)
        best[first : first + 32] = np.take_along_axis(rows, order, 1)
    return best


def peers(vectors: Vectors, indexes: Sequence[str]) -> Iterator[Contender]:
    """The exact search of faiss, and indexes with usual parameters."""
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(1)
    size = vectors.shape[1]
    product = faiss.METRIC_INNER_PRODUCT
    # The search of an IndexFlatIP, without its copy of the vectors.
    yield Contender("faiss flat", lambda queries: faiss.knn(queries, vectors, K, metric=product)[1], 4 * size)
    if "ivf" in indexes:
        yield from by_lists(faiss, vectors)
    if "hnsw" in indexes:
        yield from by_graph(faiss, vectors)


def by_lists(faiss: Any, vectors: Vectors) -> Iterator[Contender]:
    """Search the nearest lists of vectors."""
    n, size = vectors.shape
    lists = max(1, int(4 * n**0.5) // 4)
    divided = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, lists, faiss.METRIC_INNER_PRODUCT)
    start = time.perf_counter()
    divided.train(vectors[np.random.default_rng(0).permutation(n)[: 40 * lists]])
    for first in range(0, n, _BLOCK):
        divided.add(vectors[first : first + _BLOCK])
    print(f"faiss IVF of {lists} lists: built in {time.perf_counter() - start:.0f} s", flush=True)
    for probes in (16, 64):

        def search_lists(queries: Vectors, probes: int = probes) -> Rows:
            divided.nprobe = probes
            found: Rows = divided.search(queries, K)[1]
            return found

        yield Contender(f"faiss IVF, nprobe {probes}", search_lists, 4 * size + 8)


def by_graph(faiss: Any, vectors: Vectors) -> Iterator[Contender]:
    """Search a graph of near vectors."""
    size = vectors.shape[1]
    start = time.perf_counter()
    links = faiss.IndexHNSWFlat(size, 16, faiss.METRIC_INNER_PRODUCT)
    links.hnsw.efConstruction = 40
    links.add(vectors)
    print(f"faiss HNSW (M 16): built in {time.perf_counter() - start:.0f} s", flush=True)
    for candidates in (64, 256):

        def search_graph(queries: Vectors, candidates: int = candidates) -> Rows:
            links.hnsw.efSearch = candidates
            found: Rows = links.search(queries, K)[1]
            return found

        yield Contender(f"faiss HNSW, efSearch {candidates}", search_graph, 4 * size + 32 * 4 * 17 / 16)


def seconds_of(work: Callable[[], object]) -> float:
    """Return CPU seconds, which other programs on the machine change least."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(vectors: Vectors, queries: Vectors, contenders: list[Contender], rounds: int) -> None:
    """Print the table."""
    exact = nearest(vectors, NO_ROWS, queries, K).rows
    best = {(one.name, batch): np.inf for one in contenders for batch in BATCHES}
    one_pass = np.inf
    for contender in contenders:
        contender.search(queries[:1])  # loads the compiled code
    for _ in range(rounds):
        one_pass = min(one_pass, seconds_of(vectors.sum))
        for contender in contenders:
            for batch in BATCHES:
                seconds = seconds_of(partial(contender.search, queries[:batch]))
                best[contender.name, batch] = min(best[contender.name, batch], seconds)
    print(f"{len(vectors)} vectors of {vectors.shape[1]}; pass {one_pass:.3f} s,", end=" ")
    print(f"{vectors.nbytes / one_pass / 1e9:.1f} GB/s. Passes for 1, 20 and 256 queries:")
    for name, search, size in contenders:
        rows = search(queries)
        recall = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(rows, exact, strict=True)])
        speed = vectors.nbytes / best[name, 1] / 1e9
        passes = "".join(f"{best[name, batch] / one_pass:9.3f}" for batch in BATCHES)
        print(
            f"{name:26}{passes}  {speed:7.1f} GB/s of vectors, {BATCHES[-1] / best[name, BATCHES[-1]]:7.0f} queries/s,"
            f" recall@{K} {recall:.4f}, {size:5.0f} bytes a vector",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", help="folder with faiss-cpu")
    parser.add_argument("--indexes", nargs="*", choices=["ivf", "hnsw"], default=["ivf"], help="of faiss")
    parser.add_argument("--embeddings", type=Path, help="folder of `zoo encode`, instead of drawn vectors")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = read(given.embeddings) if given.embeddings else drawn(given.vectors, given.size, folder)
        vectors, queries = chosen
        size = 4 * vectors.shape[1]
        contenders = [
            Contender("exact", lambda queries: nearest(vectors, NO_ROWS, queries, K).rows, size),
            Contender("numpy", lambda queries: by_numpy(vectors, queries), size),
        ]
        if given.peers:
            sys.path.append(given.peers)
            contenders += peers(vectors, given.indexes)
        measure(vectors, queries, contenders, given.rounds)


if __name__ == "__main__":
    main()
