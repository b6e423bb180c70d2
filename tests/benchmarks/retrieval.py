"""The embedded retriever compared with bm25s (numba back end): queries a CPU second, build time, peak memory.

Run: python -m tests.benchmarks.retrieval [--documents 120000] [--length 40] [--k 20]
     python -m tests.benchmarks.retrieval --documents 10000000 --length 10 --systems BM25 --gigabytes 16

Texts are seeded draws of 200,000 words w1, w2, ... with Zipf's distribution (probability of rank r ~ 1 / r); queries
are drawn in the same way. Both see the same texts and make BM25 with Lucene's formula. Times are CPU seconds of one
thread; compiling is done before. A build includes tokenising and runs in a process of its own; its peak is the
process's largest resident size, with the texts and all imports, and it ends where it needs more than `--gigabytes`.
The queries' time includes tokenising for the embedded retriever; for bm25s it is given with and without.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.corpora.rows import Rows
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from tests.benchmarks.timing import cpu_seconds, parser, zipf_texts

SEED = 0
SYSTEMS = ("bm25s", "BM25", "LMDirichlet")


def bm25s_index(texts: list[str]) -> Any:
    import bm25s

    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend="numba")
    index.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)
    return index


def build(
    system: str, documents: int, length: int, folder: Path, gigabytes: float | None
) -> tuple[float, float]:
    """Build once small (to compile), then build; return CPU seconds, and the peak of this process in megabytes."""
    if gigabytes:
        limit = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    small = zipf_texts(200, length, SEED + 1)

    def work(texts: list[str]) -> Any:
        if system == "bm25s":
            return bm25s_index(texts)
        retriever = EmbeddedRetriever(similarity="LMDirichlet" if system == "LMDirichlet" else "BM25")
        retriever.index(Rows.from_lists(texts), "benchmark", folder)
        return retriever

    work(small)
    texts = zipf_texts(documents, length, SEED)
    seconds = cpu_seconds(lambda: work(texts))
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--documents", type=int, default=120_000)
    arguments.add_argument("--length", type=int, default=40, help="words of a document")
    arguments.add_argument("--k", type=int, default=20)
    arguments.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    arguments.add_argument("--gigabytes", type=float, help="of memory that a build may use")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(options, Path(folder))


def built_in_its_own_process(
    system: str, options: argparse.Namespace, folder: Path
) -> tuple[float, float] | None:
    """CPU seconds and peak memory of a build; None where it needs more memory than it may use."""
    given = system, options.documents, options.length, folder / system, options.gigabytes
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            seconds, megabytes = pool.submit(build, *given).result()
    except Exception as error:  # of the allocator, or the process was killed
        print(f"build {system}: failed ({options.gigabytes} GB): {error}", flush=True)
        return None
    print(f"build {system}: {seconds:.2f} CPU s, {megabytes:.0f} MB", flush=True)
    return seconds, megabytes


def compare(options: argparse.Namespace, folder: Path) -> None:
    documents, k = options.documents, options.k
    tried = {system: built_in_its_own_process(system, options, folder) for system in options.systems}
    built = {system: figures for system, figures in tried.items() if figures is not None}
    has_peer = "bm25s" in built
    embedded = [system for system in built if system != "bm25s"]
    if has_peer:
        for system in embedded:
            speed, saved = np.divide(built["bm25s"], built[system])
            print(f"build {system}: {speed:.2f} x as fast as bm25s, {1 / saved:.2f} x the peak memory")

    retrievers = {name: EmbeddedRetriever(similarity=name) for name in embedded}  # type: ignore[arg-type]
    for name, retriever in retrievers.items():
        size = sum(file.stat().st_size for file in (folder / name).rglob("*")) / 2**20
        start = time.perf_counter()
        retriever.open(folder / name, "benchmark")
        print(f"open {name}: {1000 * (time.perf_counter() - start):.1f} ms, {size:.0f} MB on the disk")
        retriever.search(zipf_texts(20, 8, SEED + 1), k)
    reference = bm25s_index(zipf_texts(documents, options.length, SEED)) if has_peer else None
    names = ["bm25s without tokenising", "bm25s"] if has_peer else []
    for length in (8, 40):
        queries = zipf_texts(1000 if documents <= 200_000 else 300, length, SEED + 2)
        rounds: list[list[float]] = []
        for _ in range(3):  # the best of three, taken in turns
            peer = [] if reference is None else bm25s_seconds(reference, queries, k)
            searches = [
                cpu_seconds(lambda r=retriever, queries=queries: r.search(queries, k))
                for retriever in retrievers.values()
            ]
            rounds.append([*peer, *searches])
        best = np.min(rounds, axis=0)
        for name, seconds in zip((*names, *retrievers), best, strict=True):
            line = f"{length:2} words, {name:24}: {len(queries) / seconds:8.0f} queries a CPU s"
            if has_peer:
                line += (
                    f", {best[0] / seconds:6.2f} x bm25s without, {best[1] / seconds:6.2f} x with tokenising"
                )
            print(line, flush=True)


def bm25s_seconds(reference: Any, queries: Sequence[str], k: int) -> list[float]:
    """CPU seconds of bm25s, without and with tokenising."""
    import bm25s

    tokens = bm25s.tokenize(queries, stopwords=None, show_progress=False)
    tokenizing = cpu_seconds(lambda: bm25s.tokenize(queries, stopwords=None, show_progress=False))
    retrieving = cpu_seconds(lambda: reference.retrieve(tokens, k=k, n_threads=1, show_progress=False))
    return [retrieving, retrieving + tokenizing]


if __name__ == "__main__":
    main()
