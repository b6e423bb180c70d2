"""An own Elasticsearch index by its size: bytes per document, loading, and searches against a bare multi-search loop.

Texts are draws of 200,000 words with Zipf's distribution, ten a document and eight a query; or documents are a column
of a table, with the titles of another one as queries. For each size and number of shards: bytes on the disk a document
after the merge, documents a second while loading and CPU seconds of the client for a million, queries a second and CPU
milliseconds of the server for one (top 20, `_msearch` of 128 from two threads). The bare loop sends the same requests
in as many threads and reads the number of answers only; both run in turns. A server with a heap of 1 GB is started.

    python -m tests.benchmarks.elasticsearch [--documents 250000 1000000] [--shards 1 3] [--table FILE COLUMN]
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from elasticsearch import Elasticsearch

from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from tests.benchmarks.timing import parser, zipf_texts
from tests.elasticsearch import server

QUERIES, K, ROUNDS = 2000, 20, 5
HEADERS = {"accept": "application/json", "content-type": "application/x-ndjson"}


def bare_loop(retriever: ElasticsearchRetriever, name: str, texts: list[str]) -> None:
    """Send the retriever's own requests by hand."""
    client = Elasticsearch(retriever.server.urls, max_retries=0, request_timeout=60)
    how = f'"size":{K},"stored_fields":"_none_","sort":["_score","row"],"_source":false,"track_total_hits":false'

    def send(start: int) -> None:
        body = "".join(
            f'{{}}\n{{"query":{{"match":{{"text":{json.dumps(text)}}}}},{how}}}\n'
            for text in texts[start : start + retriever.batch_size]
        )
        parameters = {"filter_path": "responses.hits.hits.sort"}
        answer = client.perform_request(
            "POST", f"/{name}/_msearch", params=parameters, headers=HEADERS, body=body.encode()
        )
        assert len(answer["responses"]) > 0

    with ThreadPoolExecutor(retriever.server.threads) as pool:
        list(pool.map(send, range(0, len(texts), retriever.batch_size)))
    client.close()


@contextmanager
def started_server() -> Iterator[str]:
    """The URL of a server, which is stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server may run as another user
        try:
            yield server.start(Path(folder) / "server").url
        finally:
            server.stop(Path(folder) / "server")


def server_cpu(client: Elasticsearch) -> float:
    (node,) = client.nodes.stats(metric="process")["nodes"].values()
    return float(node["process"]["cpu"]["total_in_millis"]) / 1000


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(url: str, texts: list[str], queries: list[str], shards: int) -> None:
    """Load the texts, search, and print a line."""
    prefix = f"size-{len(texts)}-{shards}"
    name = f"{prefix}-{'0' * 16}"
    retriever = ElasticsearchRetriever(url=url, index_prefix=prefix, shards=shards)
    cpu = time.process_time()
    loading = seconds_of(lambda: retriever.index(Rows.from_lists(texts), "0" * 16, Path("unused")))
    cpu = 1e6 * (time.process_time() - cpu) / len(texts)
    with Elasticsearch(url, request_timeout=600) as client:
        statistics = client.indices.stats(index=name, metric="store")
        store = statistics["_all"]["primaries"]["store"]["size_in_bytes"]
        own, bare, spent = [], [], []
        for _ in range(ROUNDS + 2):  # the server's compiler needs two rounds to warm up
            before = server_cpu(client)
            own.append(seconds_of(lambda: retriever.search(queries, K)))
            spent.append(1000 * (server_cpu(client) - before) / len(queries))
            bare.append(seconds_of(lambda: bare_loop(retriever, name, queries)))
        client.indices.delete(index=name)
    search, peer = np.median(own[2:]), np.median(bare[2:])
    print(
        f"{len(texts):9} documents, {shards} shards: {store / len(texts):5.1f} bytes a document,"
        f" {len(texts) / loading:7.0f} documents a second loaded (client {cpu:.1f} CPU s a million),"
        f" {len(queries) / search:6.0f} queries a second ({np.median(spent[2:]):.2f} CPU ms of the server),"
        f" {peer / search:.2f} x the bare loop",
        flush=True,
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--documents", type=int, nargs="+", default=[250_000, 1_000_000])
    arguments.add_argument("--shards", type=int, nargs="+", default=[1, 3])
    column: Any = {"nargs": 2, "metavar": ("FILE", "COLUMN")}
    arguments.add_argument("--table", **column, help="documents in place of drawn ones")
    arguments.add_argument("--queries", **column, help="queries in place of drawn ones")
    given = arguments.parse_args()
    texts = (
        read_table(*given.table, None).texts[:] if given.table else zipf_texts(max(given.documents), 10, 0)
    )
    queries = zipf_texts(QUERIES, 8, 1)
    if given.queries:
        queries = read_table(*given.queries, None).texts[:QUERIES]
    with started_server() as url:
        for documents in sorted({min(documents, len(texts)) for documents in given.documents}):
            for shards in given.shards:
                measure(url, texts[:documents], queries, shards)


if __name__ == "__main__":
    main()
