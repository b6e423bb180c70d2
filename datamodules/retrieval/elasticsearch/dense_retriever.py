"""The retriever that searches an Elasticsearch server for texts of similar meaning."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import MOST_HITS, ExcludedRows, Hits, check_search
from datamodules.retrieval.dense.ranking import LEAST_SCORE, OVERSAMPLE, Quantization
from datamodules.retrieval.dense.text_vectors import EncodingRetriever
from datamodules.retrieval.dense.vector_store import TEXTS
from datamodules.retrieval.elasticsearch.server_retriever import (
    SORTED,
    ServerRetriever,
    bulk_lines,
    chunks,
    rows_of,
)

log = logging.getLogger(__name__)

# The server's limit for vectors of one bit a number.
_LEAST_BITS = 64
# Attempts to write lost vectors again, of at most MOST_HITS each.
_REPAIRS = 100
_LOST: PlainDict = {
    "bool": {"filter": {"term": {"has_vector": True}}, "must_not": {"exists": {"field": "vector"}}}
}


class ElasticsearchDenseRetriever(EncodingRetriever, ServerRetriever):
    """Ranks texts like `DenseRetriever`, on an Elasticsearch 8.13 or newer; see `ElasticsearchRetriever`.

    Args:
        encoder: see `EncodingRetriever`.
        num_candidates: None compares a query with every text. A number (at least that of the neighbors) builds a
            graph (HNSW) and compares about that many texts of each shard, which may miss some near ones.
        quantization: coarse vectors that the server compares with a query, of a quarter (`int8`) or a thirtieth (`bbq`,
            one bit a number; at least 64 numbers) of the bytes. It computes the exact scores of the best texts, and may
            miss a hit, above all among near-duplicates, whose vectors differ by less than the codes. It needs
            Elasticsearch 8.18 or newer.
        others: options of `EncodingRetriever` and `ServerRetriever`.
    """

    batch_size = 64  # a vector takes some KB as text

    def __init__(
        self,
        encoder: str,
        num_candidates: int | None = None,
        quantization: Quantization | None = None,
        **others: Any,
    ) -> None:
        if num_candidates is not None and not 1 <= num_candidates <= MOST_HITS:
            raise InputError(f"num_candidates={num_candidates}: use 1 to {MOST_HITS}, or null")
        super().__init__(encoder, **others)

    @override
    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """See `Retriever.search`; a text without tokens has no hits."""
        most = self.ranking.num_candidates or MOST_HITS
        if not 0 <= k <= most:
            raise InputError(f"k={k}: must be 0 to {most}, the most candidates that the server compares")
        check_search(texts, k, exclude)
        hits = Hits.none(len(texts), k)
        if len(texts) == 0 or k == 0:
            return hits
        # Many texts to search with are texts of a table. They are not stored: a search of each would make a file.
        vectors = self.vectors.of(texts, TEXTS, self.vectors.has_query_side, stores=False)
        rescored = ""
        if self.ranking.quantization is not None:
            rescored = f',"rescore_vector":{{"oversample":{OVERSAMPLE[self.ranking.quantization]}}}'

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

        self._fill(hits, np.flatnonzero(vectors.any(axis=1)).tolist(), item, None)
        np.clip(hits.scores, LEAST_SCORE, 1, out=hits.scores, where=hits.rows >= 0)
        return hits

    @override
    def _mapping(self) -> tuple[PlainDict, PlainDict]:
        kind = "flat" if self.ranking.num_candidates is None else "hnsw"
        if self.ranking.quantization is not None:
            kind = f"{self.ranking.quantization}_{kind}"
        if self.ranking.quantization == "bbq" and self.vectors.size < _LEAST_BITS:
            needed = f"needs vectors of {_LEAST_BITS} numbers or more"
            made = f"the encoder {self.ranking.encoder} makes {self.vectors.size}"
            raise InputError(f"quantization bbq: {needed}, and {made}; use int8 or null")
        properties = {
            # The product of vectors of length 1 is their cosine. The server scores (1 + product) / 2.
            "vector": {
                "type": "dense_vector",
                "index": True,
                "similarity": "dot_product",
                # The default of the server quantises vectors, and so rounds scores.
                "index_options": {"type": kind},
            },
            "has_vector": {"type": "boolean"},
        }
        # Documents are stored in row order: of equal scores the server keeps the first.
        order = {"sort.field": "row", "sort.order": "asc"}
        return order, {"_source": {"excludes": ["vector", "has_vector"]}, "properties": properties}

    @override
    def _documents(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        # Duplicates get the same bits, and so equal scores.
        positions: dict[str, list[int]] = {}
        for position, text in enumerate(texts):
            positions.setdefault(text, []).append(position)
        vectors = chain.from_iterable(self.vectors.blocks(list(positions), TEXTS))
        for same, vector in zip(positions.values(), vectors, strict=True):
            fields = _fields(vector)
            yield from ((position, fields) for position in same)

    @override
    def _repair(self, name: str, rows: Rows) -> None:
        # Elasticsearch may lose vectors that are not part of `_source` (its issue 137173); the other fields stay.
        query = f'{{}}\n{{"query":{json.dumps(_LOST)},"size":{MOST_HITS},"_source":false}}\n'.encode()
        for _ in range(_REPAIRS):
            (lost,) = self.server.search(
                name, [query], ["_id"], lambda hits: [int(hit["_id"]) for hit in hits]
            )
            if not lost:
                return
            log.warning("index %s: the server has lost vectors; %d are written again", name, len(lost))
            gone = np.array(self._own_notes(name).gone, np.int64)
            again = rows.select(rows_of(np.array(lost, np.int64), gone))
            vectors = self.vectors.of(again.texts, TEXTS)
            written = zip(range(len(again)), lost, map(_fields, vectors), strict=True)
            for chunk in chunks(bulk_lines("index", again, *document) for document in written):
                self.server.write(name, chunk)
            self.server.call(lambda client: client.indices.refresh(index=name))

    @override
    def _check_count(self, name: str, expected: int) -> None:
        super()._check_count(name, expected)
        if lost := self._count(name, _LOST):
            raise self._error(name, f"has lost {lost} vectors; delete it and run `zoo index` again")


def _fields(vector: NDArray[np.float32]) -> str:
    """Return the fields of a text; one without tokens has no vector, so it is never a hit."""
    return f',"has_vector":true,"vector":{_as_json(vector)}' if vector.any() else ""


def _as_json(vector: NDArray[np.float32]) -> str:
    # Nine digits identify a number of this precision.
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"
