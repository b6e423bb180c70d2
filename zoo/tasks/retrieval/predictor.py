"""A trained retrieval model with its data side: queries in, ranked documents of the collection out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.clickthrough.dataset import ClickSplit, RankingDataset
from datamodules.core.errors import check_count
from datamodules.corpora.pair_readers import read_identified
from datamodules.corpora.records import TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.trec_runs import run_line
from datamodules.retrieval import Memory
from datamodules.retrieval.base import MOST_HITS
from datamodules.text.tokens import TokenStore
from zoo.tasks.predictor import (
    BLOCK,
    Predictor,
    ReadText,
    as_texts,
    evaluating,
    on_device,
    texts_in,
)


class RankedDocument(NamedTuple):
    """A document that was found for a query."""

    #: in the collection.
    id: str
    text: str
    score: float
    #: row number in the collection.
    row: int


class RetrievalPredictor(Predictor):
    """Ranks a collection for queries, and embeds texts.

    The collection is the corpus of the training, or the rows of a memory that is named in its place. It is encoded when
    the first query comes.
    """

    example = 'model.predict("a query")[0]'
    has_query_side = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._collection: Rows | None = None
        self._index: Memory | None = None
        self._tokens: TokenStore | None = None
        self._documents: Any = None

    @classmethod
    @override
    def opens_memory_at_once(cls, data: TextDataModule[Any, Any]) -> bool:
        return False

    @property
    def collection(self) -> Rows:
        """The documents."""
        if self._collection is None:
            self._collection = self.data.collection(self.memory)
        return self._collection

    def _mixed_memory(self) -> Memory | None:
        """Where the retriever looks whose scores the model mixes with its own; None = it does not."""
        if not self.model.options.mix_retriever:
            return None
        if self._index is None:
            self._index = self.memory or self.data.open_memory()
        return self._index

    def predict(
        self, queries: str | Sequence[str], k: int = 10, batch_size: int = 256
    ) -> list[list[RankedDocument]]:
        """The best documents of the collection for each query.

        Args:
            queries: one or several.
            k: documents a query.
            batch_size: queries, or documents, that go through the network together.

        Returns:
            For each query its documents, the best first; of equal scores the earlier one.

        Raises:
            InputError: there is no collection, or what is given is no text or no number above 0.
        """
        queries = as_texts(queries, "query")
        check_count("k", k, MOST_HITS)
        check_count("batch_size", batch_size)
        if not queries:
            return []
        if self._tokens is None:
            self._tokens = self.data.tokenise_now(self.collection, self.data.options.document_length)
        rows = Rows.from_lists(queries, source="queries")
        split = self.data.split_of(rows, self.collection, self._tokens, self._mixed_memory())
        return self.rank_split(split, k, batch_size=batch_size, keep=True)

    def rank_split(
        self, split: ClickSplit, k: int, queries: int | None = None, batch_size: int = 256, keep: bool = False
    ) -> list[list[RankedDocument]]:
        """The best documents for the first queries of a split (None: all).

        Args:
            split: queries and documents.
            k: documents a query.
            queries: how many.
            batch_size: queries, or documents, that go through the network together.
            keep: keep the encoded documents for the next call, which has the same.
        """
        with self.data.forgetting_words():
            dataset = RankingDataset(self.data, split, only_judged=False)
            with evaluating(self.model):
                documents = self._documents
                if documents is None:
                    documents = self.model.encode_collection(dataset, batch_size)
                if keep:
                    self._documents = documents
                total = len(dataset) if queries is None else min(queries, len(dataset))
                found: list[list[RankedDocument]] = []
                for start in range(0, total, batch_size):
                    rows = range(start, min(start + batch_size, total))
                    found += self._best(dataset, rows, documents, k)
        return found

    def _best(
        self, dataset: RankingDataset, rows: Sequence[int], documents: Any, k: int
    ) -> Iterator[list[RankedDocument]]:
        batch = on_device(dataset.__getitems__(rows), self.model)
        (score,) = self.model.ranking_scores(batch, documents)
        # A stable sort: of equal scores, the earlier document.
        order = score.argsort(dim=1, descending=True, stable=True)[:, :k]
        best, table = score.gather(1, order).cpu().tolist(), dataset.split.judgements.documents
        for places, scores in zip(order.cpu().tolist(), best, strict=True):
            ids = table.table.column("id").take(places).to_pylist()
            found = zip(ids, scores, places, strict=True)
            yield [RankedDocument(id_, table.texts[row], value, row) for id_, value, row in found]

    @override
    def encode(
        self, texts: list[str], batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        return self._encode(texts, batch_size, bar, queries=False)

    @override
    def encode_queries(
        self, texts: list[str], batch_size: int = 256, bar: tqdm[Any] | None = None
    ) -> NDArray[np.float32]:
        return self._encode(texts, batch_size, bar, queries=True)

    def _encode(
        self, texts: list[str], batch_size: int, bar: tqdm[Any] | None, queries: bool
    ) -> NDArray[np.float32]:
        """The vectors of one side: of queries or of documents."""
        encode = self.model.encode_queries if queries else self.model.encode_documents
        found = np.zeros((len(texts), self.vector_size), np.float32)
        with self.data.forgetting_words(), evaluating(self.model):
            dataset = self._dataset(texts, queries)
            sizes = dataset.lengths if queries else dataset.texts.document_sizes()
            # Texts of like length together: little padding.
            order = np.argsort(-sizes, kind="stable")
            for start in range(0, len(order), batch_size):
                block = order[start : start + batch_size]
                batch = dataset.__getitems__(block) if queries else dataset.document_batch(block)
                found[block] = encode(on_device(batch, self.model)).float().cpu().numpy()
                if bar is not None:
                    bar.update(len(block))
        return found

    def _dataset(self, texts: list[str], queries: bool) -> RankingDataset:
        """Texts that come now, as queries or as documents of nothing else."""
        rows, nothing = (Rows.from_lists(some, source="texts") for some in (texts, []))
        split = self.data.split_of(*((rows, nothing) if queries else (nothing, rows)))
        return RankingDataset(self.data, split, only_judged=False)

    @override
    def trace(self, texts: list[str], queries: bool = False, batch_size: int = 256) -> list[ReadText]:
        found = []
        with self.data.forgetting_words(), evaluating(self.model):
            dataset = self._dataset(texts, queries)
            tokens = dataset.split.query_tokens if queries else dataset.split.document_tokens
            sizes = dataset.lengths if queries else dataset.texts.document_sizes()
            for start in range(0, len(texts), batch_size):
                rows = np.arange(start, min(start + batch_size, len(texts)))
                batch = dataset.__getitems__(rows) if queries else dataset.document_batch(rows)
                parts, directions = self.model.trace(on_device(batch, self.model), queries)
                arrays = {name: part.float().cpu().numpy() for name, part in parts.items()}
                for place, row in enumerate(rows.tolist()):
                    size = int(sizes[row])
                    own = {name: array[place, :size] for name, array in arrays.items()}
                    found.append(ReadText(texts[row], tokens.words(row)[:size], own, directions))
        return found

    @property
    @override
    def vector_size(self) -> int:
        size: int = self.model.vector_size
        return size

    @override
    def records(
        self,
        source: str,
        batch_size: int = 256,
        text_column: TextColumn | None = None,
        k: int = 10,
        run_name: str | None = None,
    ) -> Iterator[dict[str, Any]] | Iterator[str]:
        """The best documents of the collection for each query.

        Args:
            source: see `Predictor.records`; of a .jsonl, .parquet or .tsv table, the ids are read as well.
            batch_size: queries, or documents, that go through the network together.
            text_column: the queries' column or columns, in a table; null: as in training.
            k: documents a query.
            run_name: write lines of a TREC run, `query Q0 document rank score name`, with this name.

        Raises:
            InputError: no documents are wanted, or the source can't be read.
        """
        check_count("k", k, MOST_HITS)
        queries = self._queries(source, text_column)
        ranked = self._ranked(queries, k, batch_size)
        if run_name is None:
            return (_record(id_, query, found) for id_, query, found in ranked)
        return (line for id_, _, found in ranked for line in _run_lines(id_, found, run_name))

    def _queries(self, source: str, text_column: TextColumn | None) -> Rows:
        if source == "-" or source.endswith(".txt"):
            return Rows.from_lists(texts_in(source, {}), source=source)
        return read_identified(source, text_column or self.data.options.query_column)

    def _ranked(
        self, queries: Rows, k: int, batch_size: int
    ) -> Iterator[tuple[str, str, list[RankedDocument]]]:
        for start in range(0, len(queries), BLOCK):
            block = queries.select(range(start, min(start + BLOCK, len(queries))))
            found = self.predict(block.texts[:], k, batch_size)
            yield from zip(block.ids, block.texts, found, strict=True)


def _record(id_: str, query: str, found: Sequence[RankedDocument]) -> dict[str, Any]:
    documents = [{"id": one.id, "text": one.text, "score": one.score} for one in found]
    return {"id": id_, "query": query, "documents": documents}


def _run_lines(id_: str, found: Sequence[RankedDocument], name: str) -> Iterator[str]:
    for rank, document in enumerate(found, 1):
        yield run_line(id_, document.id, rank, document.score, name)
