"""Prepared judgements, and batches: examples to train on, a collection to encode, queries to rank it for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self, override

from datamodules.batch import ClickBatch, QueryBatch, TextBlock, as_tensors
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.rows import Rows
from datamodules.dataset import BatchDataset, Origin, PreparedSplit, Side, rows_and_weights
from datamodules.drawing import Matches, choose, key_of, uniform
from datamodules.retrieval import Neighbors, open_neighbors
from datamodules.retrieval.base import Hits
from datamodules.sampling import longest_first
from datamodules.text.gather import distinct_rows, gather, gather_texts
from datamodules.text.tokens import TokenStore

#: Sources of negatives.
NegativesFrom: TypeAlias = Literal["random", "in_batch", "retrieved"]
#: Purposes of random numbers: positives, random negatives, retrieved negatives.
POSITIVES, RANDOM, RETRIEVED = range(3)


def document_hits(neighbors: Neighbors, documents: Rows) -> Hits:
    """Hits as rows of the documents; memories outside the collection are skipped."""
    row_of = documents.row_of_id()
    rows = np.array([*(row_of.get(id_, -1) for id_ in neighbors.memories.ids), -1], np.int32)
    return Hits(rows[neighbors.rows], np.asarray(neighbors.scores))


@dataclass(frozen=True)
class ClickSplit(PreparedSplit):
    """One table of judgements, ready for batches."""

    judgements: Judgements
    query_tokens: TokenStore
    document_tokens: TokenStore
    #: None where nothing was retrieved.
    hits: Hits | None = None

    @classmethod
    @override
    def map_parts(cls, origin: Origin) -> Self:
        documents, hits = origin.rows("documents"), origin.open_optional("hits", open_neighbors)
        return cls(
            Judgements.load(origin.folder("judgements"), origin.source, documents=documents),
            origin.open("query_tokens", TokenStore.open),
            origin.open("document_tokens", TokenStore.open),
            None if hits is None else document_hits(hits, documents),
        )

    @property
    def empty_queries(self) -> NDArray[np.bool_]:
        """bool [Q]: queries without a word: all documents are equally good for them."""
        return np.diff(self.query_tokens.offsets) == 0


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


class ClickDataset(BatchDataset[ClickBatch]):
    """Batches of examples: a query with a relevant document and others, drawn in every epoch."""

    is_redrawn = True

    def __init__(
        self, sides: tuple[Side, Side], split: ClickSplit, positives: int, negatives: Negatives
    ) -> None:
        """Choose the examples: at most `positives` of a query in an epoch."""
        self.queries, self.documents = sides
        self.negatives = negatives
        self.judgements = judgements = split.judgements
        self.seed, self.positives = negatives.seed, positives
        usable = (judgements.grade > 0) & ~split.empty_queries[judgements.query]
        #: int64: numbers of the judgements that examples are made of.
        self.relevant = np.flatnonzero(usable)
        self.query = judgements.query[self.relevant].astype(np.int64)
        sizes = np.bincount(self.query, minlength=len(judgements.queries))
        self._size = int(np.minimum(sizes, positives).sum())
        self._drawn: tuple[int, NDArray[np.int64]] = (-1, self.relevant)

    def __len__(self) -> int:
        return self._size

    def examples(self, epoch: int) -> NDArray[np.int64]:
        """The judgements [n] of an epoch's examples, in order of their queries.

        A query's relevant documents are drawn without replacement, those of grade g with weight 2^g - 1 (P. Efraimidis
        and P. Spirakis, Weighted random sampling with a reservoir, 2006: the largest u^(1/weight) of uniform u).
        """
        if self._drawn[0] != epoch:
            u = uniform(key_of(self.seed, epoch, POSITIVES), self.relevant)
            weight = np.exp2(self.judgements.grade[self.relevant].astype(np.float64)) - 1
            order = np.lexsort((-np.log(u) / weight, self.query))
            starts = np.searchsorted(self.query, self.query)
            chosen = order[np.arange(len(order)) - starts < self.positives]
            self._drawn = epoch, self.relevant[np.sort(chosen)]
        return self._drawn[1]

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        """Number of words of each example [n]: of its query and its relevant document, as kept."""
        rows, judgements = self.examples(epoch), self.judgements
        queries = self.queries.tokens.sizes[judgements.query[rows]]
        return queries + self.documents.tokens.sizes[judgements.document[rows]]

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> ClickBatch:
        """Build a batch of one epoch: i + e n is example i of epoch e (see `LengthBucketSampler`)."""
        epoch, numbers = np.divmod(np.asarray(indices, np.int64), len(self))
        row = self.examples(int(epoch[0]))[numbers]
        query_rows = self.judgements.query[row].astype(np.int64)
        positive = self.judgements.document[row].astype(np.int64)
        negative = self.negatives.draw(int(epoch[0]), numbers, query_rows)
        documents, position = distinct_rows(np.concatenate([positive[:, None], negative], axis=1))
        queries, query = distinct_rows(query_rows)
        word, char, texts = gather((self.queries.tokens, queries), (self.documents.tokens, documents))
        arrays = {
            "word": word,
            "char": char,
            "query_text": texts[0],
            "document_text": texts[1],
            "query": query,
            "positive": position[:, 0],
            "candidate": self._candidates(query_rows, documents, position, negative >= 0),
            "row": row,
        }
        return ClickBatch(
            **as_tensors(arrays),
            query_string=self.queries.strings(queries),
            document_string=self.documents.strings(documents),
        )

    def _candidates(
        self,
        query: NDArray[np.int64],
        documents: NDArray[np.int64],
        position: NDArray[np.int64],
        is_drawn: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """bool [B, M]: the relevant document and, of the others, those that do not answer the query."""
        if "in_batch" in self.negatives.sources:
            candidate = ~self.negatives.relevant.holds(query[:, None], documents[None, :])
        else:
            candidate = np.zeros((len(query), len(documents)), bool)
            example, column = np.nonzero(is_drawn)
            candidate[example, position[:, 1:][example, column]] = True
        candidate[np.arange(len(query)), position[:, 0]] = True
        return candidate


class RankingDataset(BatchDataset[QueryBatch]):
    """Batches of queries, and the documents that are ranked for them in blocks."""

    def __init__(self, sides: tuple[Side, Side], split: ClickSplit, only_judged: bool) -> None:
        """Choose the documents: with `only_judged`, the judged ones of a query, and not the whole collection."""
        self.queries, self.texts = sides
        self.split, self.only_judged = split, only_judged
        judgements = split.judgements
        #: int64 [D]: rows of the documents that some query needs; their positions here are the columns of scores.
        self.documents = np.arange(len(judgements.documents))
        if only_judged:
            self.documents = np.unique(judgements.document).astype(np.int64)
        self.column = np.full(len(judgements.documents) + 1, -1)
        self.column[self.documents] = np.arange(len(self.documents))

    def __len__(self) -> int:
        return len(self.split.judgements.queries)

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        return self.queries.tokens.sizes

    def blocks(self, size: int, queries: bool = False) -> list[NDArray[np.int64]]:
        """Columns of all documents, or rows of all queries, in blocks of similar length."""
        return longest_first(self.lengths() if queries else self.texts.tokens.sizes[self.documents], size)

    def block(self, numbers: NDArray[np.int64], queries: bool = False) -> TextBlock:
        """Gather the texts of a block, without their judgements."""
        side, rows = (self.queries, numbers) if queries else (self.texts, self.documents[numbers])
        return TextBlock(*gather_texts(side.tokens, rows), torch.from_numpy(numbers), side.strings(rows))

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> QueryBatch:
        row, weight = rows_and_weights(indices)
        arrays: dict[str, NDArray[np.generic]] = {"weight": weight, "row": row, **self._judgements(row)}
        if self.split.duplicates is not None:
            arrays["is_duplicate"] = self.split.duplicates.is_duplicate[row]
        if (hits := self.split.hits) is not None:
            arrays |= {"hit": self.column[hits.rows[row]], "hit_score": hits.scores[row]}
        texts = gather_texts(self.queries.tokens, row)
        fields = {**texts._asdict(), "candidate": None, **as_tensors(arrays)}
        return QueryBatch(**fields, string=self.queries.strings(row))

    def _judgements(self, row: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        judgements = self.split.judgements
        judged = judgements.lists.take(row)
        query, number = judged.list_numbers, judged.values
        column = self.column[judgements.document[number]]
        fields = {"judged_query": query, "judged_document": column, "grade": judgements.grade[number]}
        if self.only_judged:
            candidate = np.zeros((len(row), len(self.documents)), bool)
            candidate[query, column] = True
            fields["candidate"] = candidate
        return fields
