"""Which documents a query's relevant one competes with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import find_sorted
from datamodules.corpora.judgements import Judgements
from datamodules.drawing import choose, choose_foreign, key_of
from datamodules.retrieval.folding import fold_hashes

#: Where negatives come from.
NegativesFrom: TypeAlias = Literal["random", "in_batch", "retrieved"]
SOURCES = ("random", "in_batch", "retrieved")

#: Purposes of random numbers: positives, random negatives, retrieved negatives.
POSITIVES, RANDOM, RETRIEVED = range(3)


class Relevant(NamedTuple):
    """Which documents answer which query; copies of them do as well."""

    #: int64 [D]: equal where documents are copies of each other.
    codes: NDArray[np.int64]
    #: int64, the codes of each query's relevant documents, sorted within a query.
    own: NDArray[np.int64]
    #: int64 [Q + 1]: query q has `own[offsets[q]:offsets[q + 1]]`.
    offsets: NDArray[np.int64]
    #: int64, query * codes + code of the same, sorted.
    keys: NDArray[np.int64]

    @classmethod
    def of(cls, judgements: Judgements) -> Relevant:
        """Those with a grade above 0."""
        codes = np.unique(fold_hashes(judgements.documents.texts), return_inverse=True)[1]
        codes = codes.reshape(-1).astype(np.int64)
        relevant = judgements.grade > 0
        query = judgements.query[relevant].astype(np.int64)
        keys = np.unique(query * len(codes) + codes[judgements.document[relevant]])
        ends = np.arange(len(judgements.queries) + 1) * len(codes)
        return cls(codes, keys % max(len(codes), 1), np.searchsorted(keys, ends), keys)

    def holds(self, query: NDArray[np.int64], document: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether documents answer queries; arrays of row numbers that broadcast."""
        wanted = query * len(self.codes) + self.codes[document]
        return find_sorted(self.keys, wanted) >= 0

    @property
    def answers_all(self) -> NDArray[np.bool_]:
        """bool [Q]: queries that every document answers: no negative is left for them."""
        everything = len(np.unique(self.codes))
        found: NDArray[np.bool_] = np.diff(self.offsets) >= everything
        return found


class HardPool(NamedTuple):
    """Documents that were found for a query and do not answer it, best first."""

    #: int64, rows of documents, query after query.
    documents: NDArray[np.int64]
    #: int64 [Q + 1]: where each query's begin.
    offsets: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        hits: NDArray[np.int64],
        scores: NDArray[np.float32] | None,
        relevant: Relevant,
        skip: int,
        highest: float | None,
    ) -> HardPool:
        """What remains of hits.

        That nobody judged a document does not say that it is irrelevant, and the first hits are the likeliest to
        be relevant ones that were missed: they can be left out.

        Args:
            hits: [Q, K] rows of documents, best first, -1 where there are fewer.
            scores: [Q, K] their scores; None = they have none.
            relevant: what answers the queries, and is left out.
            skip: leave out the first so many of a query's hits that are not relevant.
            highest: leave out hits whose score is above this share of the score of the query's best relevant hit; a
                query without a relevant hit has nothing to compare with, and keeps its hits. None = no limit.
        """
        queries = np.arange(len(hits))[:, None]
        real = hits >= 0
        answers = real & relevant.holds(queries, hits.clip(min=0))
        kept = real & ~answers
        kept &= kept.cumsum(axis=1) > skip
        if highest is not None and scores is not None:
            best = np.where(answers, scores, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
            kept &= np.isneginf(best) | (scores <= highest * best)
        sizes = kept.sum(axis=1)
        return cls(hits[kept].astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [Q]: documents of each query."""
        return np.diff(self.offsets)


@dataclass
class Negatives:
    """Draws documents for examples; its pool may be replaced while a model is trained.

    Attributes:
        relevant: what answers the queries.
        sources: where negatives come from; `in_batch` draws none.
        count: n, documents that are drawn for an example.
        seed: of the run.
        pool: the documents for `retrieved`.
    """

    relevant: Relevant
    sources: Collection[NegativesFrom]
    count: int
    seed: int
    pool: HardPool | None = None

    def draw(self, epoch: int, examples: NDArray[np.int64], query: NDArray[np.int64]) -> NDArray[np.int64]:
        """Documents that do not answer the queries of some examples.

        Of random and retrieved negatives each example gets half of its documents; where the pool of a query has too
        few, random ones take their place.

        Args:
            epoch: another epoch draws anew.
            examples: [B] their numbers.
            query: [B] their queries.

        Returns:
            [B, n] rows of documents, -1 where there are no more; n = 0 if all negatives are in the batch.
        """
        drawing = [source for source in self.sources if source != "in_batch"]
        if not drawing:
            return np.zeros((len(examples), 0), np.int64)
        drawn = np.full((len(examples), self.count), -1, np.int64)
        if "retrieved" in drawing and self.pool is not None:
            hard = self.count if len(drawing) == 1 else (self.count + 1) // 2
            key = key_of(self.seed, epoch, RETRIEVED)
            places = choose(key, examples, self.pool.sizes[query], hard)
            documents = np.append(self.pool.documents, -1)
            at = np.where(places < 0, -1, places + self.pool.offsets[query][:, None])
            drawn[:, :hard] = documents[at]
        missing = drawn < 0
        if missing.any():
            relevant = self.relevant
            more = choose_foreign(
                key_of(self.seed, epoch, RANDOM),
                examples,
                query,
                relevant.codes,
                relevant.own,
                relevant.offsets,
                self.count,
            )
            drawn = np.where(missing, more, drawn)
        return drawn
