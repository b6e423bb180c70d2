"""ElasticsearchRetriever against a bare multi-search loop with the same batch size and threads.

    python -m tests.benchmarks.elasticsearch_retriever --data_dir DATA [--url URL]

The bare loop sends the same queries, ready made, in the same number of threads, and reads nothing but the
number of answers. Both run by turns on one index, of the Dblp titles or with `--long` of the abstracts of papers,
with titles as queries; the figure is the ratio of their queries a second. The cost of the client is the CPU time
of the process per query.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elasticsearch import Elasticsearch

from datamodules.corpora.table import read_table
from datamodules.retrieval.base import Collection
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever

HEADERS = {"accept": "application/json", "content-type": "application/x-ndjson"}


def bare_loop(retriever: ElasticsearchRetriever, name: str, texts: list[str], k: int, sort: bool) -> None:
    """Send searches by hand: with `_id`s, or with the retriever's own request."""
    client = Elasticsearch(retriever.server.urls, max_retries=0, request_timeout=60)
    how = '"stored_fields":"_none_","sort":["_score","row"],' if sort else ""
    hits = "sort" if sort else "_id,responses.hits.hits._score"

    def send(start: int) -> None:
        body = "".join(
            f'{{}}\n{{"query":{{"match":{{"text":{json.dumps(text)}}}}},"size":{k},{how}'
            '"_source":false,"track_total_hits":false}\n'
            for text in texts[start : start + retriever.batch_size]
        )
        answer = client.perform_request(
            "POST",
            f"/{name}/_msearch",
            params={"filter_path": f"responses.hits.hits.{hits}"},
            headers=HEADERS,
            body=body.encode(),
        )
        assert len(answer["responses"]) > 0

    with ThreadPoolExecutor(retriever.server.threads) as pool:
        list(pool.map(send, range(0, len(texts), retriever.batch_size)))
    client.close()


def measure(work: Callable[[], object], queries: int) -> tuple[float, float]:
    """Queries a second, and microseconds of this process's CPU a query."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return queries / seconds, 1e6 * cpu / queries


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:9250")
    parser.add_argument("--queries", type=int, default=12_800)
    parser.add_argument("--long", action="store_true", help="search abstracts, not titles")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    with (arguments.data_dir / "dblp/train.csv").open(newline="") as file:
        titles = [row["text"] for row in csv.DictReader(file)]
    documents = titles
    if arguments.long:
        documents = read_table(arguments.data_dir / "papers/papers.jsonl.xz", "abstract", None).texts[:]
    retriever = ElasticsearchRetriever(
        url=arguments.url,
        index_prefix="memory-zoo-benchmark",
        batch_size=arguments.batch_size,
        threads=arguments.threads,
    )
    fingerprint = uuid.uuid4().hex
    seconds, cpu = measure(
        lambda: retriever.index(Collection(documents, fingerprint), Path(), progress=False), len(documents)
    )
    print(f"index: {seconds:,.0f} rows/s, client {cpu:.1f} us CPU a row")
    name = f"memory-zoo-benchmark-{fingerprint[:16]}"
    queries, k = titles[: arguments.queries], arguments.k
    contenders = {
        "retriever": lambda: retriever.search(queries, k),
        "bare loop, same request": lambda: bare_loop(retriever, name, queries, k, sort=True),
        "bare loop, _id and _score": lambda: bare_loop(retriever, name, queries, k, sort=False),
    }
    figures: dict[str, list[tuple[float, float]]] = {contender: [] for contender in contenders}
    try:
        for turn in range(-2, arguments.rounds):  # the server's compiler needs two rounds to warm up
            for contender, work in contenders.items():
                figure = measure(work, len(queries))
                if turn >= 0:
                    figures[contender].append(figure)
    finally:
        Elasticsearch(arguments.url).indices.delete(index=name)
    speed = {contender: statistics.median(row[0] for row in rows) for contender, rows in figures.items()}
    for contender, rows in figures.items():
        cpu = statistics.median(row[1] for row in rows)
        print(
            f"{contender}: {speed[contender]:,.0f} queries/s, {cpu:.1f} us CPU a query;"
            f" retriever / this = {speed['retriever'] / speed[contender]:.3f}"
        )


if __name__ == "__main__":
    main()
