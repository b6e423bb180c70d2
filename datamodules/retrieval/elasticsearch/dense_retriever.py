"""The retriever that asks an Elasticsearch server for texts of like meaning.

What the dense retriever does with files, done by a server: texts are encoded here, their vectors lie and are
compared there. The server also keeps each vector's bits beside a hash of its text, so that no text of the
collection is encoded again, be it as a query, as a copy or after an interruption; and copies of a text have
equal scores for ever.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.retrieval.base import Hits, check_search
from datamodules.retrieval.dense.ranking import LEAST_SCORE, DenseRanking, Pooling
from datamodules.retrieval.dense.text_vectors import TextVectors
from datamodules.retrieval.elasticsearch.connection import reads_answers
from datamodules.retrieval.elasticsearch.server_retriever import NO_HITS, ROW, SORTED, ServerRetriever
from datamodules.retrieval.folding import text_hashes

#: What a server accepts as `num_candidates`, and so the most neighbours of a text.
MOST_CANDIDATES = 10_000

# Queries in a request (a vector takes some KB as text), and requests under way at the same time.
_QUERIES = 64
_REQUESTS = 2
# Texts that are encoded in one go, and looked up in one query.
_TEXTS = 4096
_HASHES = 256


class ElasticsearchDenseRetriever(ServerRetriever):
    """Ranks texts by the cosine of their vectors and the query's, on an Elasticsearch 8.13 or newer.

    Scores and ranking are those of `DenseRetriever`, unless `num_candidates` trades exactness for speed.
    Credentials are given and kept secret as for `ElasticsearchRetriever`.

    Args:
        encoder: what makes vectors of texts; see `DenseRetriever`, also for the next five.
        pooling: how tokens become a text's vector.
        batch_size: texts encoded at once.
        max_length: tokens kept of a text.
        device: where the encoder runs.
        threads: of the encoder on a CPU.
        num_candidates: None compares a query with every text. A number (100, say; at least as many as
            neighbours are wanted) builds a graph of near vectors (HNSW) and compares a query with about so
            many texts of each shard: for millions of texts, of which it may miss some near ones.
        server: where the server is and what its indexes are like, see `ServerRetriever`: `url`,
            `index_prefix`, `shards`, `replicas`, `timeout`, `client_args`.

    Raises:
        InputError: an argument is out of range. A missing encoder is named when it is first needed.
    """

    ranking: DenseRanking

    def __init__(
        self,
        encoder: str,
        pooling: Pooling = "mean",
        batch_size: int = 64,
        max_length: int = 256,
        device: str | None = None,
        threads: int | None = None,
        num_candidates: int | None = None,
        **server: Any,
    ) -> None:
        if num_candidates is not None and not 1 <= num_candidates <= MOST_CANDIDATES:
            raise InputError(f"num_candidates={num_candidates}: use 1 to {MOST_CANDIDATES}, or null")
        self.ranking = DenseRanking(encoder, pooling, max_length, num_candidates)
        self.vectors = TextVectors(self.ranking, batch_size, device, threads)
        #: name of the open index -> numbers in its vectors.
        self._sizes: dict[str, int | None] = {}
        super().__init__(batch_size=_QUERIES, threads=_REQUESTS, **server)

    def _init_args(self) -> dict[str, Any]:
        return {
            **self.vectors.describe(),
            "num_candidates": self.ranking.num_candidates,
            **super()._init_args(),
        }

    def close(self) -> None:
        """Close the connections and let go of the encoder; `open` may follow."""
        super().close()
        self.vectors.close()

    @reads_answers
    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """The best k rows for each text; see `Retriever.search`. A text without tokens has no hits.

        Raises:
            InputError: k is out of range, or the server can't be reached or refuses.
        """
        most = self.ranking.num_candidates or MOST_CANDIDATES
        if not 0 <= k <= most:
            raise InputError(f"k={k}: must be 0 to {most}, the most candidates that the server looks at")
        check_search(texts, k, exclude)
        hits = Hits.none(len(texts), k)
        name = self._opened()
        if len(texts) == 0 or k == 0:
            return hits
        if self.vectors.has_query_side:
            vectors = self.vectors.of(texts, _TEXTS, queries=True)
        else:
            vectors = self._vectors_of(name, texts)
        if (there := self._size(name)) is not None:
            self.vectors.check_size(vectors.shape[1], there, f"index {name}")

        def item(query: int) -> bytes:
            filtered = ""
            if exclude is not None and len(exclude[query]):
                # Left out before the search and not after it: an approximate one finds k others all the same.
                rows = ",".join(f'"{int(row)}"' for row in exclude[query])
                filtered = f',"filter":{{"bool":{{"must_not":{{"ids":{{"values":[{rows}]}}}}}}}}'
            knn = (
                f'{{"field":"vector","query_vector":{_as_json(vectors[query])}'
                f',"num_candidates":{self.ranking.num_candidates or k}{filtered}}}'
            )
            return f'{{}}\n{{"query":{{"knn":{knn}}},"size":{k},{SORTED}'.encode()

        self._fill(hits, np.flatnonzero(vectors.any(axis=1)).tolist(), item)
        np.clip(hits.scores, LEAST_SCORE, 1, out=hits.scores, where=hits.rows >= 0)
        return hits

    def _mapping(self) -> tuple[dict[str, Any], dict[str, Any]]:
        kind = "flat" if self.ranking.num_candidates is None else "hnsw"
        properties = {
            "row": ROW,
            # Of vectors of length 1 the product is the cosine. The server scores (1 + product) / 2.
            "vector": {
                "type": "dense_vector",
                "index": True,
                "similarity": "dot_product",
                # Without the quantisation that is the default: it rounds scores.
                "index_options": {"type": kind},
            },
            "hash": {"type": "keyword"},
            "bits": {"type": "binary", "doc_values": True},
        }
        # Documents lie in row order: among equal scores the server keeps those that come first.
        order = {"sort.field": "row", "sort.order": "asc"}
        return order, {"_source": {"excludes": ["vector", "hash", "bits"]}, "properties": properties}

    def _documents(self, name: str, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        self.server.call(lambda client: client.indices.refresh(index=name))  # to find what is there already
        positions: dict[str, list[int]] = {}
        for position, text in enumerate(texts):
            positions.setdefault(text, []).append(position)
        distinct = list(positions)
        for first in range(0, len(distinct), _TEXTS):
            block = distinct[first : first + _TEXTS]
            vectors = self._vectors_of(name, block)
            for text, hashed, vector in zip(block, _hashes(block), vectors, strict=True):
                fields = ""  # a text without tokens has no vector, so it is never found
                if vector.any():
                    bits = b64encode(vector.astype("<f4").tobytes()).decode()
                    fields = f',"hash":"{hashed}","bits":"{bits}","vector":{_as_json(vector)}'
                for position in positions[text]:
                    yield position, fields

    def _size(self, name: str) -> int | None:
        """Numbers in a vector of the open index; None where no text has one. Asked for once."""
        if self._sizes.get(name) is None:
            mappings = self.server.call(lambda client: client.indices.get_mapping(index=name))
            field = next(iter(mappings.values()))["mappings"]["properties"]["vector"]
            self._sizes = {name: field.get("dims")}
        return self._sizes[name]

    def _vectors_of(self, name: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of at least one text [n, d]; those that the index has are not encoded again."""
        hashes = _hashes(texts)
        there = self._look_up(name, list(dict.fromkeys(hashes)))
        unknown = [text for text, hashed in zip(texts, hashes, strict=True) if hashed not in there]
        if not unknown:
            return np.stack([there[hashed] for hashed in hashes])
        encoded = iter(self.vectors.of(unknown, _TEXTS))
        return np.stack([there[hashed] if hashed in there else next(encoded) for hashed in hashes])

    def _look_up(self, name: str, hashes: list[str]) -> dict[str, NDArray[np.float32]]:
        """The vectors of the texts with these hashes, by hash, as far as the index has them."""
        there: dict[str, NDArray[np.float32]] = {}

        def search_batch(start: int) -> None:
            some = hashes[start : start + _HASHES]
            wanted = ",".join(f'"{hashed}"' for hashed in some)
            # One document stands for all copies of a text.
            query = (
                f'{{"query":{{"terms":{{"hash":[{wanted}]}}}},"size":{len(some)},"collapse":{{"field":"hash"}}'
                ',"docvalue_fields":["hash","bits"],"_source":false,"track_total_hits":false}'
            )
            (answer,) = self.server.search(name, [f"{{}}\n{query}\n".encode()], "responses.hits.hits.fields")
            for hit in answer.get("hits", NO_HITS)["hits"]:
                bits = b64decode(hit["fields"]["bits"][0])
                there[hit["fields"]["hash"][0]] = np.frombuffer(bits, "<f4").astype(np.float32)

        self.server.in_threads(search_batch, range(0, len(hashes), _HASHES))
        return there


def _hashes(texts: Sequence[str]) -> list[str]:
    return [f"{number:016x}" for number in text_hashes(texts).tolist()]


def _as_json(vector: NDArray[np.float32]) -> str:
    # Nine digits tell any two numbers of this precision apart.
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"
