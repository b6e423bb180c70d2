"""Prepared judgements, and batches: examples to train on, a collection to encode, queries to rank it for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.batch import BatchContents, ClickBatch, DocumentBatch, QueryBatch, as_tensors
from datamodules.clickthrough.negatives import POSITIVES, Negatives
from datamodules.core.ragged import consecutive
from datamodules.core.storage import check_folder
from datamodules.corpora.judgements import Judgements
from datamodules.corpora.rows import Rows
from datamodules.dataset import BatchDataset
from datamodules.drawing import key_of, uniform
from datamodules.duplicates import DuplicateMarks
from datamodules.prepared import Origin, PreparedSplit
from datamodules.retrieval import Neighbors, open_neighbors
from datamodules.text.gather import TextGroup, WordTable, distinct_rows, gather
from datamodules.text.tokens import TokenStore


class DocumentHits(NamedTuple):
    """Hits of a retriever for Q queries in the collection: at most H documents each, best first."""

    #: int64 [Q, H]: rows of documents, -1 where there are fewer.
    document: NDArray[np.int64]
    #: float32 [Q, H].
    score: NDArray[np.float32]

    @classmethod
    def of(cls, neighbors: Neighbors, documents: Rows) -> DocumentHits:
        """Hits by the documents' rows; documents outside the collection are skipped."""
        row_of = documents.row_of_id()
        rows = np.array([*(row_of.get(id_, -1) for id_ in neighbors.memories.ids), -1], np.int64)
        return cls(rows[neighbors.rows], np.asarray(neighbors.scores))


@dataclass(frozen=True)
class ClickSplit(PreparedSplit):
    """One table of judgements, ready for batches."""

    judgements: Judgements
    query_tokens: TokenStore
    document_tokens: TokenStore
    #: None where nothing was retrieved.
    hits: DocumentHits | None = None
    origin: Origin | None = None
    #: of queries.
    duplicates: DuplicateMarks | None = None

    @classmethod
    def open(cls, origin: Origin) -> ClickSplit:
        """Map the parts of a prepared table; see `PreparedSplit.open`."""
        for name in ("judgements", "documents"):
            check_folder(*origin.folder(name))
        documents = Rows.load(origin.folder("documents")[0] / "rows.arrow")
        hits = open_neighbors(*origin.folder("hits")) if "hits" in origin.parts else None
        return cls(
            Judgements.load(origin.folder("judgements")[0], documents, origin.source),
            TokenStore.open(*origin.folder("query_tokens")),
            TokenStore.open(*origin.folder("document_tokens")),
            None if hits is None else DocumentHits.of(hits, documents),
            origin,
            DuplicateMarks.open(*origin.folder("duplicates")) if "duplicates" in origin.parts else None,
        )

    @property
    def empty_queries(self) -> NDArray[np.bool_]:
        """bool [Q]: queries without a word; each document is as good for them."""
        empty: NDArray[np.bool_] = np.diff(self.query_tokens.offsets) == 0
        return empty


class ClickTexts:
    """The texts of a split in the vocabulary in use; part of a data set."""

    def __init__(
        self, words: WordTable, split: ClickSplit, lengths: tuple[int, int], contents: BatchContents
    ) -> None:
        """Bind the texts; `lengths` are the numbers of words kept of a query and of a document."""
        self.split, self.with_strings = split, contents.strings
        self.queries, self.documents = words.add(split.query_tokens), words.add(split.document_tokens)
        self.query_length, self.document_length = lengths

    def query_sizes(self) -> NDArray[np.int64]:
        """int64 [Q]: words of the queries, as kept."""
        return np.minimum(np.diff(self.split.query_tokens.offsets), self.query_length)

    def document_sizes(self) -> NDArray[np.int64]:
        """int64 [D]: words of the documents, as kept."""
        return np.minimum(np.diff(self.split.document_tokens.offsets), self.document_length)

    def query_group(self, rows: NDArray[np.int64]) -> TextGroup:
        """Queries for `gather`."""
        return TextGroup(self.queries, rows, self.query_length)

    def document_group(self, rows: NDArray[np.int64]) -> TextGroup:
        """Documents for `gather`."""
        return TextGroup(self.documents, rows, self.document_length)

    def query_strings(self, rows: NDArray[np.int64]) -> list[str] | None:
        """Queries as strings, where a model reads these."""
        return self._strings(self.split.judgements.queries, rows)

    def document_strings(self, rows: NDArray[np.int64]) -> list[str] | None:
        """Documents as strings, where a model reads these."""
        return self._strings(self.split.judgements.documents, rows)

    def _strings(self, table: Rows, rows: NDArray[np.int64]) -> list[str] | None:
        return [table.texts[int(row)] for row in rows] if self.with_strings else None


class ClickDataset(BatchDataset[ClickBatch]):
    """Batches of examples: a query with a relevant document and others.

    An epoch has up to `positives` examples of each query: another choice of its relevant documents in every epoch.
    """

    is_redrawn = True

    def __init__(self, texts: ClickTexts, positives: int, negatives: Negatives) -> None:
        """Choose the examples.

        Args:
            texts: of the split.
            positives: maximum number of examples of a query in an epoch.
            negatives: draws the documents that an example's relevant one competes with.
        """
        self.texts, self.negatives, split = texts, negatives, texts.split
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
        """Examples of an epoch."""
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
        rows = self.examples(epoch)
        judgements, texts = self.judgements, self.texts
        queries, documents = texts.query_sizes(), texts.document_sizes()
        lengths: NDArray[np.int64] = queries[judgements.query[rows]] + documents[judgements.document[rows]]
        return lengths

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> ClickBatch:
        """Build a batch.

        Args:
            indices: i is example i; i + e n is example i of epoch e (see `ListSampler`). All of one epoch.
        """
        epoch, numbers = np.divmod(np.asarray(indices, np.int64), len(self))
        row = self.examples(int(epoch[0]))[numbers]
        of_query = self.judgements.query[row].astype(np.int64)
        positive = self.judgements.document[row].astype(np.int64)
        negative = self.negatives.draw(int(epoch[0]), numbers, of_query)
        documents, place = distinct_rows(np.concatenate([positive[:, None], negative], axis=1))
        queries, query = distinct_rows(of_query)
        candidate = self._candidates(of_query, documents, place, negative >= 0)
        groups = [self.texts.query_group(queries), self.texts.document_group(documents)]
        gathered = gather(groups)
        arrays = {
            "word": gathered.word,
            "char": gathered.char,
            "query_text": gathered.texts[0],
            "document_text": gathered.texts[1],
            "query": query,
            "positive": place[:, 0],
            "candidate": candidate,
            "row": row,
        }
        strings = (self.texts.query_strings(queries), self.texts.document_strings(documents))
        return ClickBatch(**as_tensors(arrays), query_string=strings[0], document_string=strings[1])

    def _candidates(
        self,
        query: NDArray[np.int64],
        documents: NDArray[np.int64],
        place: NDArray[np.int64],
        is_drawn: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """bool [B, M]: the relevant document and, of the others, those that don't answer the query."""
        example = np.arange(len(query))
        if "in_batch" in self.negatives.sources:
            candidate = ~self.negatives.relevant.holds(query[:, None], documents[None, :])
        else:
            candidate = np.zeros((len(query), len(documents)), bool)
            at, column = np.nonzero(is_drawn)
            candidate[at, place[:, 1:][at, column]] = True
        candidate[example, place[:, 0]] = True
        return candidate


class RankingDataset(BatchDataset[QueryBatch]):
    """Batches of queries, and the documents that are ranked for them in blocks."""

    def __init__(self, texts: ClickTexts, only_judged: bool) -> None:
        """Choose the documents.

        Args:
            texts: of the split.
            only_judged: rank the judged documents of a query, and not the whole collection.
        """
        self.texts, self.split, self.only_judged = texts, texts.split, only_judged
        judgements = self.split.judgements
        #: int64 [D]: rows of the documents that some query needs; a document's place here is its column.
        self.documents = np.arange(len(judgements.documents))
        if only_judged:
            self.documents = np.unique(judgements.document).astype(np.int64)
        self.column = np.full(len(judgements.documents) + 1, -1)
        self.column[self.documents] = np.arange(len(self.documents))

    def __len__(self) -> int:
        """Queries."""
        return len(self.split.judgements.queries)

    @override
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        return self.texts.query_sizes()

    def document_blocks(self, size: int) -> list[NDArray[np.int64]]:
        """Columns of all documents in blocks of like length, longest first: little padding is encoded."""
        order = np.argsort(-self.texts.document_sizes()[self.documents], kind="stable")
        return [order[start : start + size] for start in range(0, len(order), size)]

    def document_batch(self, columns: NDArray[np.int64]) -> DocumentBatch:
        """A block of documents."""
        rows = self.documents[columns]
        gathered = gather([self.texts.document_group(rows)])
        word, char, text, row = map(
            torch.from_numpy, (gathered.word, gathered.char, gathered.texts[0], columns)
        )
        return DocumentBatch(word, char, text, row, self.texts.document_strings(rows))

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> QueryBatch:
        given = np.asarray(indices, np.int64)
        row = np.where(given < 0, ~given, given)
        gathered = gather([self.texts.query_group(row)])
        fields = self._judgements(row)
        if self.split.duplicates is not None:
            fields["is_duplicate"] = self.split.duplicates.is_duplicate[row]
        if (hits := self.split.hits) is not None:
            fields |= {"hit": self.column[hits.document[row]], "hit_score": hits.score[row]}
        arrays: dict[str, NDArray[np.generic]] = {
            "word": gathered.word,
            "char": gathered.char,
            "text": gathered.texts[0],
            "weight": (given >= 0).astype(np.float32),
            "row": row,
            **fields,
        }
        return QueryBatch(**{"candidate": None, **as_tensors(arrays)}, string=self.texts.query_strings(row))

    def _judgements(self, row: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        judgements = self.split.judgements
        starts, ends = judgements.offsets[row], judgements.offsets[row + 1]
        judged = consecutive(starts, ends - starts)
        query, number = judged.list_numbers, judged.values
        column = self.column[judgements.document[number]]
        fields = {"judged_query": query, "judged_document": column, "grade": judgements.grade[number]}
        if self.only_judged:
            candidate = np.zeros((len(row), len(self.documents)), bool)
            candidate[query, column] = True
            fields["candidate"] = candidate
        return fields
