"""Cost of changing a memory: adding, removing and correcting rows, compared with building it from scratch.

Texts are seeded draws with Zipf's distribution from 200,000 words. Printed for each step: CPU seconds of this
process and time. `add` ends when a search finds the new rows; the first search of the grown memory is measured
apart; then one row is removed, and one corrected. With --url the index lies in Elasticsearch, whose own work is in the
time only.

    python -m tests.benchmarks.memory_growth --rows 100000 --added 10000
    python -m tests.benchmarks.memory_growth --rows 100000 --added 10000 --url http://localhost:9200
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from elasticsearch import Elasticsearch

from datamodules.corpora.rows import Rows
from datamodules.retrieval import ElasticsearchRetriever, EmbeddedRetriever, FolderMemory, Retriever
from tests.benchmarks.timing import parser, zipf_texts

T = TypeVar("T")


def timed(name: str, work: Callable[[], T]) -> tuple[T, float]:
    """Do the work and print its cost; return its result and its time in seconds."""
    cpu, start = time.process_time(), time.perf_counter()
    result = work()
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    print(f"{name:42} {cpu:7.2f} CPU s {seconds:7.2f} s", flush=True)
    return result, seconds


def main() -> None:
    """Build, add, build the grown one from scratch."""
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--added", type=int, default=10_000)
    arguments.add_argument("--words", type=int, default=40, help="of a text")
    arguments.add_argument("--url", help="of an Elasticsearch server")
    options = arguments.parse_args()
    texts = zipf_texts(options.rows + options.added, options.words, 0)
    rows = Rows.from_lists(texts, [f"c{number % 4}" for number in range(len(texts))])
    first = rows.select(np.arange(options.rows))
    added = rows.select(np.arange(options.rows, len(rows)))

    prefixes = [f"zoo-benchmark-{uuid.uuid4().hex[:8]}" for _ in range(3)]

    def make(prefix: str) -> Retriever:
        if options.url:
            return ElasticsearchRetriever(url=options.url, index_prefix=prefix)
        return EmbeddedRetriever()

    def build(table: Rows, folder: Path, prefix: str) -> FolderMemory:
        return FolderMemory.build(table, make(prefix), folder)

    try:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            small = build(rows.select(np.arange(100)), folder / "warm", prefixes[0])
            small.add(rows.select(np.arange(100, 200)))  # compiles the kernels
            small.search([rows.texts[0]], 1)
            old, _ = timed(f"build {options.rows} rows", lambda: build(first, folder / "m", prefixes[1]))
            _, growing = timed(f"add {options.added} rows to {options.rows}", lambda: old.add(added))
            hits, _ = timed("first search of a new row", lambda: old.search([added.texts[0]], 1))
            assert hits.memories.texts[0] == added.texts[0]
            _, building = timed(
                f"build {len(rows)} rows from scratch", lambda: build(rows, folder / "n", prefixes[2])
            )
            timed("open the grown memory", lambda: FolderMemory(folder / "m", make(prefixes[1])))
            ids = old.rows.ids
            timed("remove a row", lambda: old.remove([ids[len(ids) // 2]]))
            timed("correct a row", lambda: old.relabel({ids[len(ids) // 3]: "c9"}))
            print(f"adding takes {growing / building:.2f} of building from scratch")
    finally:
        if options.url:
            with Elasticsearch(options.url) as client:
                for prefix in prefixes:
                    for name in client.indices.get(index=f"{prefix}*", ignore_unavailable=True):
                        client.indices.delete(index=name)


if __name__ == "__main__":
    main()
