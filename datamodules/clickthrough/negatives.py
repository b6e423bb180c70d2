"""Documents that a query's relevant one competes with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import find_sorted
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.judgements import Judgements
from datamodules.drawing import choose, choose_foreign, key_of
from datamodules.duplicates import duplicate_codes
from datamodules.retrieval.base import Hits

#: Sources of negatives.
NegativesFrom: TypeAlias = Literal["random", "in_batch", "retrieved"]
#: Purposes of random numbers: positives, random negatives, retrieved negatives.
POSITIVES, RANDOM, RETRIEVED = range(3)


class Relevant(NamedTuple):
    """The documents that answer each query, and their duplicates."""

    #: int64 [D]: equal for duplicates.
    codes: NDArray[np.int64]
    #: the codes of each query's relevant documents, ascending.
    own: Ragged
    #: int64, query * D + code of the same, ascending.
    keys: NDArray[np.int64]

    @classmethod
    def of(cls, judgements: Judgements) -> Relevant:
        """The documents with a grade above 0."""
        codes = duplicate_codes(judgements.documents.texts)
        relevant = judgements.grade > 0
        query = judgements.query[relevant].astype(np.int64)
        keys = np.unique(query * len(codes) + codes[judgements.document[relevant]])
        ends = np.arange(len(judgements.queries) + 1) * len(codes)
        return cls(codes, Ragged(keys % max(len(codes), 1), np.searchsorted(keys, ends)), keys)

    def holds(self, query: NDArray[np.int64], document: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True where documents answer queries; arrays of row numbers that broadcast."""
        return find_sorted(self.keys, query * len(self.codes) + self.codes[document]) >= 0

    @property
    def answers_all(self) -> NDArray[np.bool_]:
        """bool [Q]: queries that every document answers, and which have no negatives."""
        return self.own.counts >= len(np.unique(self.codes))


def hard_pool(hits: Hits, relevant: Relevant, skip: int) -> Ragged:
    """Hits that do not answer their query, for each query as rows of documents, best first.

    A document without a judgement may be relevant, the first hits above all: the first `skip` are excluded.
    """
    rows = hits.rows
    queries = np.arange(len(rows))[:, None]
    kept = (rows >= 0) & ~relevant.holds(queries, rows.clip(min=0).astype(np.int64))
    kept &= kept.cumsum(axis=1) > skip
    return Ragged(rows[kept].astype(np.int64), offsets_of(kept.sum(axis=1)))


@dataclass
class Negatives:
    """Draws documents for examples."""

    relevant: Relevant
    #: `in_batch` draws none.
    sources: Collection[NegativesFrom]
    #: n, documents that are drawn for an example.
    count: int
    seed: int
    #: for each query, documents for `retrieved`; see `hard_pool`.
    pool: Ragged | None = None

    def draw(self, epoch: int, examples: NDArray[np.int64], query: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw documents [B, n] that do not answer the queries [B]: half retrieved, half random, -1 = no more."""
        drawing = [source for source in self.sources if source != "in_batch"]
        if not drawing:
            return np.zeros((len(examples), 0), np.int64)
        drawn = np.full((len(examples), self.count), -1, np.int64)
        if "retrieved" in drawing and self.pool is not None:
            hard = self.count if len(drawing) == 1 else (self.count + 1) // 2
            key = key_of(self.seed, epoch, RETRIEVED)
            positions = choose(key, examples, self.pool.counts[query], hard)
            documents = np.append(self.pool.values, -1)
            drawn[:, :hard] = documents[
                np.where(positions < 0, -1, positions + self.pool.offsets[query][:, None])
            ]
        missing = drawn < 0
        if missing.any():
            key, own = key_of(self.seed, epoch, RANDOM), self.relevant.own
            random = choose_foreign(
                key, examples, query, self.relevant.codes, own.values, own.offsets, self.count
            )
            drawn = np.where(missing, random, drawn)
        return drawn
