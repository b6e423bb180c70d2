"""Vectors that a server loses while many are loaded: Elasticsearch's bug 137173, which is in 8.19.

    python -m tests.benchmarks.lost_vectors --server URL --times 5

Loads vectors of 16 numbers onto three shards of a server, and prints for each load how many vectors were
missing before they were written again from their bits, and how many afterwards.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.retrieval.base import Collection
from datamodules.retrieval.elasticsearch.dense_retriever import _LOST, ElasticsearchDenseRetriever
from datamodules.retrieval.folding import text_hashes

SIZE = 16


class DrawnVectors:
    """Vectors that are drawn for each text, in place of those of an encoder."""

    has_query_side = False

    def of(self, texts: Sequence[str], block: int, queries: bool = False) -> NDArray[np.float32]:
        hashes = text_hashes(texts)
        drawn = np.stack([np.random.default_rng(int(seed)).normal(size=SIZE) for seed in hashes])
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    def close(self) -> None:
        return


class CountingRetriever(ElasticsearchDenseRetriever):
    """Counts what was lost before the repair."""

    lost_at_first = 0

    def count_lost(self, name: str) -> int:
        return int(self.server.call(lambda client: client.count(index=name, query=_LOST))["count"])

    def _repair(self, name: str, collection: Collection) -> None:
        self.lost_at_first = self.count_lost(name)
        super()._repair(name, collection)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--server", required=True, help="URL of an Elasticsearch")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    texts = [f"text number {number}" for number in range(given.texts)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.times):
            options: dict[str, Any] = {"url": given.server, "index_prefix": "zoo-lost", "timeout": 300}
            # A file in place of an encoder: its contents identify the vectors.
            retriever = CountingRetriever(__file__, shards=given.shards, **options)
            vars(retriever)["vectors"] = DrawnVectors()
            fingerprint = f"{number:016d}"
            start = time.perf_counter()
            name = f"zoo-lost-{fingerprint}"
            retriever.server.call(
                lambda client, name=name: client.indices.delete(index=name, ignore_unavailable=True)
            )
            retriever.index(Collection(texts, fingerprint), Path(folder), progress=False)
            after, seconds = retriever.count_lost(name), time.perf_counter() - start
            lost = f"{retriever.lost_at_first} lost, {after} after the repair"
            print(f"load {number}: {lost}, {seconds:.0f} s", flush=True)
            retriever.server.call(lambda client, name=name: client.indices.delete(index=name))


if __name__ == "__main__":
    main()
