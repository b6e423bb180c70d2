"""Agreement of the embedded retriever with a real Elasticsearch.

    python -m tests.benchmarks.agreement --data_dir DATA [--url URL]

For three corpora, both similarities and two analyzers: the share of queries that get the same rows up to
ties, and the largest relative difference between the scores of a row. A query agrees if the rows that both
return have the same score (1e-5 relative), and a row that only one returns has the score of the other's
last hit (a tie at the end of the list).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from elasticsearch import Elasticsearch

from datamodules.retrieval.base import Collection, Hits, Similarity
from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever

TOLERANCE = 1e-5
PREFIX = "memory-zoo-agreement"


def corpora(data: Path, queries: int) -> Iterator[tuple[str, list[str], list[str]]]:
    """(name, texts, query texts); titles fill up where there are too few queries."""
    with gzip.open(data / "ag_news/train_pool.csv.gz", "rt", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, escapechar="\\"))
    texts = [f"{row['title'] or ''} {row['text'] or ''}" for row in rows]
    yield "AG pool", texts, texts[:queries]
    with (data / "dblp/train.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    yield "Dblp", texts, texts[:queries]
    with gzip.open(data / "nfcorpus/corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    texts = [f"{row['title']} {row['text']}" for row in documents]
    read = []
    for name in ("queries.train.jsonl", "queries.dev.jsonl"):
        with (data / "nfcorpus" / name).open(encoding="utf-8") as file:
            read += [json.loads(line)["text"] for line in file]
    yield "NFCorpus", texts, (read + [row["title"] for row in documents])[:queries]


def compare(first: Hits, second: Hits) -> tuple[float, float]:
    """The share of queries that agree and the largest relative difference of a row's scores."""
    agreeing, largest = 0, 0.0
    for rows_a, scores_a, rows_b, scores_b in zip(*first, *second, strict=True):
        a = {int(row): float(score) for row, score in zip(rows_a, scores_a, strict=True) if row >= 0}
        b = {int(row): float(score) for row, score in zip(rows_b, scores_b, strict=True) if row >= 0}
        differences = [abs(a[row] - b[row]) / max(abs(b[row]), 1e-9) for row in a.keys() & b.keys()]
        largest = max([largest, *differences])
        ends = {id(a): min(a.values(), default=0.0), id(b): min(b.values(), default=0.0)}
        tied = all(
            abs(mine[row] - ends[id(its)]) <= TOLERANCE * max(mine[row], 1e-9)
            for mine, its in ((a, b), (b, a))
            for row in mine.keys() - its.keys()
        )
        agreeing += len(a) == len(b) and tied and max(differences, default=0.0) <= TOLERANCE
    return agreeing / len(first.rows), largest


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--url", default="http://127.0.0.1:9250")
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--k", type=int, default=20)
    arguments = parser.parse_args()
    similarities: tuple[Similarity, ...] = ("BM25", "LMDirichlet")
    print("| corpus | texts | queries | similarity | analyzer | same rows | same order | score difference |")
    print("|---|---|---|---|---|---|---|---|")
    for corpus, texts, queries in corpora(arguments.data_dir, arguments.queries):
        for similarity in similarities:
            for analyzer in ("standard", "english"):
                embedded = EmbeddedRetriever(similarity, analyzer)
                server = ElasticsearchRetriever(similarity, analyzer, url=arguments.url, index_prefix=PREFIX)
                fingerprint = uuid.uuid4().hex
                with tempfile.TemporaryDirectory() as folder:
                    embedded.index(Collection(texts, fingerprint), Path(folder) / "index", progress=False)
                    embedded_hits = embedded.search(queries, arguments.k)
                    embedded.close()
                try:
                    server.index(Collection(texts, fingerprint), Path(), progress=False)
                    server_hits = server.search(queries, arguments.k)
                finally:
                    name = f"{PREFIX}-{fingerprint[:16]}"
                    Elasticsearch(arguments.url).indices.delete(index=name, ignore_unavailable=True)
                share, difference = compare(embedded_hits, server_hits)
                exact = np.mean(np.all(embedded_hits.rows == server_hits.rows, axis=1))
                print(
                    f"| {corpus} | {len(texts):,} | {len(queries):,} | {similarity} | {analyzer}"
                    f" | {share:.4%} | {exact:.4%} | {difference:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
