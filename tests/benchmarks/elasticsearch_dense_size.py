"""Dense search on an Elasticsearch server by its quantized indexes: recall, speed and size.

Vectors are those of `dense_size.py`: of a mixture, or with --embeddings those that `zoo encode` wrote. Each index is
loaded, and its vectors are counted. Then all are searched alternately for 256 queries (top 20, `_msearch` of 64 from
two threads): recall against the exact search, queries a second (the best of --rounds), and the largest difference of a
score from that of the exact vectors. A server with a heap of 1 GB is started.

    python -m tests.benchmarks.elasticsearch_dense_size [--vectors 20000] [--num_candidates 100] [--oversample 1 2 3]
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.corpora.rows import Rows
from datamodules.retrieval.dense.nearest import nearest
from datamodules.retrieval.dense.ranking import OVERSAMPLE, Quantization
from datamodules.retrieval.elasticsearch.dense_retriever import _LOST, ElasticsearchDenseRetriever
from tests.benchmarks.dense_size import K, given_vectors
from tests.benchmarks.elasticsearch import started_server
from tests.benchmarks.timing import parser

KINDS: list[Quantization | None] = [None, "int8", "bbq"]


class GivenVectors:
    """Vectors of numbered texts, in place of an encoder; the texts are their numbers."""

    has_query_side = False

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self.vectors, self.size = vectors, vectors.shape[1]

    def of(self, texts: Sequence[str], *_: object, **__: object) -> NDArray[np.float32]:
        return self.vectors[[int(text) for text in texts]]

    def blocks(self, texts: Sequence[str], block: int) -> Iterator[NDArray[np.float32]]:
        return (self.of(texts[first : first + block], block) for first in range(0, len(texts), block))

    def close(self) -> None:
        return


class Contender(NamedTuple):
    """A loaded index, and a number of texts that are scored exactly for each hit."""

    name: str
    retriever: ElasticsearchDenseRetriever
    oversample: int | None


def load(
    url: str, vectors: GivenVectors, n: int, kind: Quantization | None, candidates: int | None
) -> ElasticsearchDenseRetriever:
    """Load the first n vectors into a new index, and print its cost."""
    # A file in place of an encoder: its contents identify the vectors.
    server = {"url": url, "index_prefix": "dense-size", "timeout": 600}
    retriever = ElasticsearchDenseRetriever(__file__, num_candidates=candidates, quantization=kind, **server)
    vars(retriever)["vectors"] = vectors
    fingerprint = f"{kind or 'float'}-{candidates or 'flat'}".ljust(16, "-")
    start = time.perf_counter()
    retriever.index(Rows.from_lists([str(row) for row in range(n)]), fingerprint, Path("unused"))
    seconds, name = time.perf_counter() - start, f"dense-size-{fingerprint}"
    has_vector = {"exists": {"field": "vector"}}
    count = retriever.server.call(lambda client: client.count(index=name, query=has_vector))
    lost = retriever.server.call(lambda client: client.count(index=name, query=_LOST))
    store = retriever.server.call(lambda client: client.indices.stats(index=name, metric="store"))
    size = store["_all"]["primaries"]["store"]["size_in_bytes"] / n
    print(
        f"{fingerprint}: {count['count']} of {n} vectors ({lost['count']} lost), {n / seconds:.0f} loaded a second,"
        f" {size:.0f} bytes a text on the disk",
        flush=True,
    )
    return retriever


def measure(contenders: Sequence[Contender], vectors: GivenVectors, n: int, rounds: int) -> None:
    """Search alternately and print a line for each contender."""
    texts = [str(number) for number in range(n, len(vectors.vectors))]
    exact = nearest(vectors.vectors[:n], vectors.vectors[n:], K)
    best: dict[str, float] = {}
    hits = {}
    for _ in range(rounds + 1):  # the first warms the server up
        for name, retriever, oversample in contenders:
            if (kind := retriever.ranking.quantization) and oversample:
                OVERSAMPLE[kind] = oversample
            start = time.perf_counter()
            hits[name] = retriever.search(texts, K)
            best[name] = min(best.get(name, np.inf), time.perf_counter() - start)
    for name, found in hits.items():
        pairs = zip(found.rows, exact.rows, strict=True)
        recall = np.mean([len(np.intersect1d(rows, wanted)) / K for rows, wanted in pairs])
        products = np.einsum("qd,qkd->qk", vectors.vectors[n:], vectors.vectors[found.rows])
        error = np.abs(found.scores - (1 + products) / 2).max()
        print(
            f"{name:42} recall@{K} {recall:.4f}, {len(texts) / best[name]:6.0f} queries a second, error {error:.0e}"
        )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--vectors", type=int, default=20_000)
    arguments.add_argument("--size", type=int, default=384)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--num_candidates", type=int, nargs="*", default=[100])
    arguments.add_argument(
        "--oversample", type=int, nargs="+", default=sorted({1, 2, 3, *OVERSAMPLE.values()})
    )
    arguments.add_argument("--embeddings", type=Path, help="folder of `zoo encode`, instead of drawn vectors")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, started_server() as url:
        known, queries = given_vectors(given, Path(folder))
        n = min(given.vectors, len(known))
        vectors = GivenVectors(np.concatenate([known[:n], queries]))
        contenders = []
        for candidates in (None, *given.num_candidates):
            for kind in KINDS:
                retriever = load(url, vectors, n, kind, candidates)
                name = f"{kind or 'float'}, num_candidates {candidates}"
                for oversample in given.oversample if kind else [None]:
                    label = name if oversample is None else f"{name}, oversample {oversample}"
                    contenders.append(Contender(label, retriever, oversample))
        measure(contenders, vectors, n, given.rounds)


if __name__ == "__main__":
    main()
