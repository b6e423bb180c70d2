"""Costs of an Elasticsearch index by its size: bytes per document, loading, queries per second.

Texts are draws of 200,000 words with Zipf's distribution, ten a document and eight a query. For
each size and number of shards: bytes on the disk a document after the merge, documents a second while loading and CPU
seconds of the client for a million, queries a second and CPU milliseconds of the server for one (top 20, `_msearch` of
128 from two threads). A server with a heap of 1 GB is started.

    python -m tests.benchmarks.elasticsearch_size [--documents 250000 1000000] [--shards 1 3]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from elasticsearch import Elasticsearch

from datamodules.retrieval.base import Collection
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from tests.benchmarks.timing import parser, zipf_texts
from tests.elasticsearch import server

QUERIES, K = 2000, 20


def server_cpu(client: Elasticsearch) -> float:
    """CPU seconds of the server since its start."""
    (node,) = client.nodes.stats(metric="process")["nodes"].values()
    return float(node["process"]["cpu"]["total_in_millis"]) / 1000


def measure(url: str, texts: list[str], queries: list[str], shards: int) -> None:
    """Load the texts, search, and print a line."""
    name = f"size-{len(texts)}-{shards}"
    retriever = ElasticsearchRetriever(url=url, index_prefix=name, shards=shards)
    start, cpu = time.perf_counter(), time.process_time()
    retriever.index(Collection(texts, "0" * 16), Path("unused"), progress=False)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    with Elasticsearch(url, request_timeout=600) as client:
        store = client.indices.stats(index=f"{name}-*", metric="store")["_all"]["primaries"]["store"]
        retriever.search(queries[:256], K)  # the server's compiler and caches
        before, start = server_cpu(client), time.perf_counter()
        retriever.search(queries, K)
        elapsed, spent = time.perf_counter() - start, server_cpu(client) - before
        client.indices.delete(index=f"{name}-{'0' * 16}")
    millions = len(texts) / 1e6
    print(
        f"{len(texts):9} documents, {shards} shards: {store['size_in_bytes'] / len(texts):5.1f} bytes a document,"
        f" {len(texts) / seconds:7.0f} documents a second loaded (client {cpu / millions:.1f} CPU s a million),"
        f" {len(queries) / elapsed:6.0f} queries a second ({1000 * spent / len(queries):.2f} CPU ms of the server)",
        flush=True,
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--documents", type=int, nargs="+", default=[250_000, 1_000_000])
    arguments.add_argument("--shards", type=int, nargs="+", default=[1, 3])
    options = arguments.parse_args()
    texts, queries = zipf_texts(max(options.documents), 10, 0), zipf_texts(QUERIES, 8, 1)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server may run as another user
        url = server.start(Path(folder) / "server").url
        try:
            for documents in options.documents:
                for shards in options.shards:
                    measure(url, texts[:documents], queries, shards)
        finally:
            server.stop(Path(folder) / "server")


if __name__ == "__main__":
    main()
