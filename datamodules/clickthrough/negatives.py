"""Documents that a query's relevant one competes with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.judgements import Judgements
from datamodules.drawing import Matches, choose, key_of
from datamodules.retrieval.base import Hits

#: Sources of negatives.
NegativesFrom: TypeAlias = Literal["random", "in_batch", "retrieved"]
#: Purposes of random numbers: positives, random negatives, retrieved negatives.
POSITIVES, RANDOM, RETRIEVED = range(3)


def relevant_documents(judgements: Judgements) -> Matches:
    """The documents that answer each query: those with a grade above 0."""
    rows = judgements.grade > 0
    queries, documents = judgements.query[rows], judgements.document[rows]
    return Matches.of(judgements.documents.texts, len(judgements.queries), queries, documents)


def hard_pool(hits: Hits, relevant: Matches, skip: int) -> Ragged:
    """Hits that do not answer their query, for each query as rows of documents, best first.

    A document without a judgement may be relevant, the first hits above all: the first `skip` are excluded.
    """
    kept = relevant.are_foreign(hits.rows)
    kept &= kept.cumsum(axis=1) > skip
    return Ragged(hits.rows[kept].astype(np.int64), offsets_of(kept.sum(axis=1)))


@dataclass
class Negatives:
    """Draws documents for examples."""

    relevant: Matches
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
            key, start, size = key_of(self.seed, epoch, RETRIEVED), self.pool.offsets, self.pool.counts
            drawn[:, :hard] = choose(key, examples, self.pool.values, start[query], size[query], hard)
        missing = drawn < 0
        if missing.any():
            random = self.relevant.draw(key_of(self.seed, epoch, RANDOM), examples, query, self.count)
            drawn = np.where(missing, random, drawn)
        return drawn
