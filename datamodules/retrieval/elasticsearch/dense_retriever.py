"""The retriever that searches an Elasticsearch server for texts of similar meaning."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.retrieval.base import MOST_HITS, Collection, ExcludedRows, Hits, check_search
from datamodules.retrieval.dense.encoding_retriever import EncodingRetriever
from datamodules.retrieval.dense.ranking import LEAST_SCORE, Quantization
from datamodules.retrieval.elasticsearch.server_retriever import (
    SORTED,
    ServerRetriever,
    bulk_lines,
    rows_of,
)
from datamodules.retrieval.folding import text_hashes

log = logging.getLogger(__name__)

# Queries in a request (a vector takes some KB as text).
_QUERIES = 64
_TEXTS = 4096
_HASHES = 256
# The server's limit for vectors of one bit a number.
_LEAST_BITS = 64
# Attempts to write lost vectors again, of at most MOST_HITS each.
_REPAIRS = 100
_LOST: PlainDict = {
    "bool": {"filter": {"exists": {"field": "bits"}}, "must_not": {"exists": {"field": "vector"}}}
}


class ElasticsearchDenseRetriever(EncodingRetriever, ServerRetriever):
    """Ranks texts like `DenseRetriever`, on an Elasticsearch 8.13 or newer; see `ElasticsearchRetriever`.

    Args:
        encoder: see `EncodingRetriever`.
        num_candidates: None compares a query with every text. A number (at least that of the neighbors) builds a
            graph (HNSW) and compares about that many texts of each shard, which may miss some near ones.
        quantization: coarse vectors that the server compares with a query, of a quarter (`int8`) or a thirtieth (`bbq`,
            one bit a number; at least 64 numbers) of the bytes. It computes the exact scores of the best texts, and may
            miss a hit. It needs Elasticsearch 8.18 or newer.
        oversample: the number of texts of each shard that are scored exactly for each hit; None = 4 for `int8`, 8 for
            `bbq`.
        others: options of `EncodingRetriever` and `ServerRetriever`.
    """

    def __init__(
        self,
        encoder: str,
        num_candidates: int | None = None,
        quantization: Quantization | None = None,
        oversample: int | None = None,
        **others: Any,
    ) -> None:
        if num_candidates is not None and not 1 <= num_candidates <= MOST_HITS:
            raise InputError(f"num_candidates={num_candidates}: use 1 to {MOST_HITS}, or null")
        self.approximation = {
            "num_candidates": num_candidates,
            "quantization": quantization,
            "oversample": oversample,
        }
        super().__init__(encoder, **others)
        self.batch_size = _QUERIES

    @override
    def _init_args(self) -> PlainDict:
        return {**ServerRetriever._init_args(self), **super()._init_args(), **(self.approximation or {})}

    @override
    def _open_index(self, name: str) -> None:
        super()._open_index(name)
        # None if no text has a vector.
        self._size: int | None = self._mapping_of(
            name, lambda mapping: mapping["properties"]["vector"].get("dims")
        )

    @override
    def close(self) -> None:
        super().close()
        self.vectors.close()

    @override
    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """See `Retriever.search`; a text without tokens has no hits."""
        most = self.ranking.num_candidates or MOST_HITS
        if not 0 <= k <= most:
            raise InputError(f"k={k}: must be 0 to {most}, the most candidates that the server compares")
        check_search(texts, k, exclude)
        hits = Hits.none(len(texts), k)
        name = self._opened()
        if len(texts) == 0 or k == 0:
            return hits
        if self.vectors.has_query_side:
            vectors = self.vectors.of(texts, _TEXTS, queries=True)
        else:
            vectors = self._vectors_of(name, texts)
        if self._size is not None:
            self.vectors.check_size(vectors.shape[1], self._size, f"index {name}")

        rescored = ""
        if self.ranking.quantization is not None:
            rescored = f',"rescore_vector":{{"oversample":{self.ranking.rescored}}}'

        def item(query: int) -> bytes:
            filtered = ""
            if exclude is not None and len(exclude[query]):
                # Excluded before the search and not after it, so an approximate search still has k hits.
                ids = ",".join(f'"{number}"' for number in self._numbers[np.asarray(exclude[query])].tolist())
                excluded = f'"must_not":{{"ids":{{"values":[{ids}]}}}}'
                # Elasticsearch 9.2 would fill up the hits with documents without a vector.
                filtered = f',"filter":{{"bool":{{{excluded},"filter":{{"exists":{{"field":"vector"}}}}}}}}'
            knn = (
                f'{{"field":"vector","query_vector":{_as_json(vectors[query])}'
                f',"num_candidates":{self.ranking.num_candidates or k}{rescored}{filtered}}}'
            )
            return f'{{}}\n{{"query":{{"knn":{knn}}},"size":{k},{SORTED}'.encode()

        self._fill(hits, np.flatnonzero(vectors.any(axis=1)).tolist(), item)
        np.clip(hits.scores, LEAST_SCORE, 1, out=hits.scores, where=hits.rows >= 0)
        return hits

    @override
    def _mapping(self) -> tuple[PlainDict, PlainDict]:
        kind = "flat" if self.ranking.num_candidates is None else "hnsw"
        if self.ranking.quantization is not None:
            kind = f"{self.ranking.quantization}_{kind}"
        if self.ranking.quantization == "bbq" and self.vectors.size < _LEAST_BITS:
            raise InputError(
                f"quantization bbq: needs vectors of {_LEAST_BITS} numbers or more, and the encoder"
                f" {self.ranking.encoder} makes {self.vectors.size}; use int8 or null"
            )
        properties = {
            # The product of vectors of length 1 is their cosine. The server scores (1 + product) / 2.
            "vector": {
                "type": "dense_vector",
                "index": True,
                "similarity": "dot_product",
                # The default of the server quantises vectors, and so rounds scores.
                "index_options": {"type": kind},
            },
            "hash": {"type": "keyword"},
            "bits": {"type": "binary", "doc_values": True},
        }
        # Documents are stored in row order: of equal scores the server keeps the first.
        order = {"sort.field": "row", "sort.order": "asc"}
        return order, {"_source": {"excludes": ["vector", "hash", "bits"]}, "properties": properties}

    @override
    def _documents(self, name: str, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        # `_load` has refreshed the index, so searches return the vectors of an interrupted load.
        positions: dict[str, list[int]] = {}
        for position, text in enumerate(texts):
            positions.setdefault(text, []).append(position)
        distinct = list(positions)
        for first in range(0, len(distinct), _TEXTS):
            block = distinct[first : first + _TEXTS]
            vectors = self._vectors_of(name, block)
            for text, hashed, vector in zip(block, _hashes(block), vectors, strict=True):
                fields = ""  # a text without tokens has no vector, so it is never a hit
                if vector.any():
                    fields = _fields(hashed, vector)
                for position in positions[text]:
                    yield position, fields

    @override
    def _repair(self, name: str, collection: Collection) -> None:
        # Elasticsearch may lose vectors that are not part of `_source` (its issue 137173); the other fields stay.
        for _ in range(_REPAIRS):
            if not (lost := self._lost(name)):
                return
            log.warning("index %s: the server has lost vectors; %d are written again", name, len(lost))
            numbers = np.array([number for number, _, _ in lost], np.int64)
            rows = rows_of(numbers, np.array(self._own_notes(name).gone, np.int64)).tolist()
            lines = [
                bulk_lines("index", collection, row, number, _fields(hashed, vector))
                for row, (number, hashed, vector) in zip(rows, lost, strict=True)
            ]
            for first in range(0, len(lines), _TEXTS):
                self.server.write(name, lines[first : first + _TEXTS])
            self.server.call(lambda client: client.indices.refresh(index=name))

    @override
    def _check_count(self, name: str, expected: int) -> None:
        super()._check_count(name, expected)
        if lost := self._count(name, _LOST):
            raise self._error(name, f"has lost {lost} vectors; delete it and run `zoo index` again")

    def _lost(self, name: str) -> list[tuple[int, str, NDArray[np.float32]]]:
        """Return number, hash and vector of documents that have bits and no vector, at most `MOST_HITS` at once."""
        query = f'{{"query":{json.dumps(_LOST)},"size":{MOST_HITS},"docvalue_fields":["hash","bits"],"_source":false}}'
        (lost,) = self.server.search(
            name,
            [f"{{}}\n{query}\n".encode()],
            ["_id", "fields"],
            lambda hits: [(int(hit["_id"]), *_hash_and_vector(hit)) for hit in hits],
        )
        return lost

    def _vectors_of(self, name: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of at least one text [n, d]; those in the index are not encoded again."""
        hashes = _hashes(texts)
        known = self._look_up(name, list(dict.fromkeys(hashes)))
        unknown = [text for text, hashed in zip(texts, hashes, strict=True) if hashed not in known]
        encoded = iter(self.vectors.of(unknown, _TEXTS) if unknown else ())
        return np.stack([known[hashed] if hashed in known else next(encoded) for hashed in hashes])

    def _look_up(self, name: str, hashes: list[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of the texts with these hashes, by hash, as far as they are in the index."""
        vectors: dict[str, NDArray[np.float32]] = {}

        def search_batch(batch: Sequence[str]) -> None:
            values = ",".join(f'"{hashed}"' for hashed in batch)
            # One document represents all duplicates of a text.
            query = (
                f'{{"query":{{"terms":{{"hash":[{values}]}}}},"size":{len(batch)},"collapse":{{"field":"hash"}}'
                ',"docvalue_fields":["hash","bits"],"_source":false,"track_total_hits":false}'
            )
            (known,) = self.server.search(
                name,
                [f"{{}}\n{query}\n".encode()],
                ["fields"],
                lambda hits: dict(map(_hash_and_vector, hits)),
            )
            vectors.update(known)

        self.server.in_threads(search_batch, hashes, _HASHES)
        return vectors


def _hashes(texts: Sequence[str]) -> list[str]:
    return [f"{number:016x}" for number in text_hashes(texts).tolist()]


def _fields(hashed: str, vector: NDArray[np.float32]) -> str:
    """Return the fields of a text with a vector."""
    bits = b64encode(vector.astype("<f4").tobytes()).decode()
    return f',"hash":"{hashed}","bits":"{bits}","vector":{_as_json(vector)}'


def _hash_and_vector(hit: PlainDict) -> tuple[str, NDArray[np.float32]]:
    """Return the hash and the vector of a document."""
    fields = hit["fields"]
    vector = np.frombuffer(b64decode(fields["bits"][0]), "<f4").astype(np.float32)
    return str(fields["hash"][0]), vector


def _as_json(vector: NDArray[np.float32]) -> str:
    # Nine digits identify a number of this precision.
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"
