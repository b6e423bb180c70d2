"""The embedded retriever beside bm25s (numba back end): queries a CPU second, build time, peak memory.

Run: python tests/benchmarks/retrieval.py [--documents 120000] [--k 20]

Texts are seeded draws of 200,000 words w1, w2, ... with Zipf's distribution (probability of rank r ~ 1 / r),
40 words a document; queries are drawn likewise. Both sides see the same texts and make BM25 with Lucene's
formula. Times are CPU seconds of one thread; compiling is done before. A build includes tokenising and runs
in a process of its own; its peak is the process's largest resident size, with the texts and all imports.
The queries' time includes tokenising for the embedded retriever; for bm25s it is given with and without.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.retrieval.base import Collection
from datamodules.retrieval.embedded import EmbeddedRetriever

SEED, WORDS, LENGTH = 0, 200_000, 40


def draw(n: int, length: int, seed: int) -> list[str]:
    """n texts of `length` Zipf-distributed words."""
    rng = np.random.default_rng(seed)
    cumulative = np.cumsum(1 / np.arange(1, WORDS + 1))
    names = np.array([f"w{rank}" for rank in range(1, WORDS + 1)], object)
    texts: list[str] = []
    for first in range(0, n, 10_000):
        size = min(10_000, n - first)
        ranks = np.searchsorted(cumulative, rng.random((size, length)) * cumulative[-1])
        texts.extend(map(" ".join, names[ranks]))
    return texts


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def bm25s_index(texts: list[str]) -> Any:
    import bm25s

    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend="numba")
    index.index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)
    return index


def build(system: str, documents: int, folder: Path) -> None:
    """In a process of its own: build once small (to compile), then build and print CPU seconds and peak."""
    small = draw(200, LENGTH, SEED + 1)

    def work(texts: list[str]) -> Any:
        if system == "bm25s":
            return bm25s_index(texts)
        retriever = EmbeddedRetriever(similarity="LMDirichlet" if system == "LMDirichlet" else "BM25")
        retriever.index(Collection(texts, "benchmark"), folder, progress=False)
        return retriever

    work(small)
    texts = draw(documents, LENGTH, SEED)
    seconds, _ = cpu(lambda: work(texts))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "megabytes": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, default=120_000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(options.build, options.documents, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(options.documents, options.k, Path(folder))


def compare(documents: int, k: int, folder: Path) -> None:
    built = {}
    for system in ("bm25s", "BM25", "LMDirichlet"):
        command = [sys.executable, __file__, "--documents", str(documents), "--build", system]
        output = subprocess.run([*command, "--folder", folder / system], check=True, stdout=subprocess.PIPE)
        built[system] = json.loads(output.stdout.splitlines()[-1])
        print(f"build {system}: {built[system]['seconds']:.2f} CPU s, {built[system]['megabytes']:.0f} MB")
    for system in ("BM25", "LMDirichlet"):
        speed = built["bm25s"]["seconds"] / built[system]["seconds"]
        peak = built[system]["megabytes"] / built["bm25s"]["megabytes"]
        print(f"build {system}: {speed:.2f} x as fast as bm25s, {peak:.2f} x the peak memory")

    import bm25s

    reference = bm25s_index(draw(documents, LENGTH, SEED))
    retrievers = {name: EmbeddedRetriever(similarity=name) for name in ("BM25", "LMDirichlet")}  # type: ignore[arg-type]
    for name, retriever in retrievers.items():
        start = time.perf_counter()
        retriever.open(folder / name, "benchmark")
        print(f"open {name}: {1000 * (time.perf_counter() - start):.1f} ms")
        retriever.search(draw(20, 8, SEED + 1), k)

    def retrieve(tokens: Any) -> Any:
        return reference.retrieve(tokens, k=k, n_threads=1, show_progress=False)

    def tokenize(texts: list[str]) -> Any:
        return bm25s.tokenize(texts, stopwords=None, show_progress=False)

    retrieve(tokenize(draw(20, 8, SEED + 1)))
    for length in (8, 40):
        queries = draw(1000 if documents <= 200_000 else 300, length, SEED + 2)
        rounds: list[list[float]] = []
        for _ in range(3):  # the best of three, taken in turns
            tokenizing, tokens = cpu(lambda queries=queries: tokenize(queries))
            retrieving, _ = cpu(lambda tokens=tokens: retrieve(tokens))
            embedded = [
                cpu(lambda r=retriever, queries=queries: r.search(queries, k))[0]
                for retriever in retrievers.values()
            ]
            rounds.append([retrieving, retrieving + tokenizing, *embedded])
        best = np.min(rounds, axis=0)
        for name, seconds in zip(("bm25s without tokenising", "bm25s", *retrievers), best, strict=True):
            ratios = f"{best[0] / seconds:6.2f} x bm25s without, {best[1] / seconds:6.2f} x with tokenising"
            print(f"{length:2} words, {name:24}: {len(queries) / seconds:8.0f} queries a CPU s, {ratios}")


if __name__ == "__main__":
    main()
