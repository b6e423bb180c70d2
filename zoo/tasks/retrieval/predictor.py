"""Predictions of a trained retrieval model: queries in, ranked documents of the collection out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.batch import QueryBatch
from datamodules.clickthrough import ClickSplit, ClickthroughDataModule, RankingDataset
from datamodules.core.errors import InputError, check_count
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.sharing import cached_property
from datamodules.core.types import PlainDict
from datamodules.corpora.records import TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_identified
from datamodules.corpora.trec_runs import read_candidates
from datamodules.dataset import Side
from datamodules.retrieval import Memory
from datamodules.retrieval.base import MOST_HITS
from datamodules.retrieval.dense.text_vectors import ProgressBar
from datamodules.sampling import longest_first
from datamodules.text.tokens import TokenStore
from zoo.tasks.predictor import Predictor, evaluating, memory_of, on_device
from zoo.tasks.records import BLOCK, as_texts, blocks_of, records_or_lines, texts_in


class RankedDocument(NamedTuple):
    """A document that was ranked for a query."""

    #: in the collection.
    id: str
    text: str
    score: float
    #: row number in the collection.
    row: int


class RetrievalPredictor(Predictor[ClickthroughDataModule]):
    """Ranks the corpus of the training, or a memory that replaces it, for queries; embeds texts."""

    example = 'model.predict("a query")[0]'
    has_query_side = True
    ranked = "documents"

    _documents: Any = None

    @classmethod
    @override
    def needs_memory(cls, data: ClickthroughDataModule) -> bool:
        return False

    @cached_property
    def collection(self) -> Rows:
        """The documents."""
        return self.data.collection(self.memory)

    @cached_property
    def _tokens(self) -> TokenStore:
        return self.data.words.tokenize_now(self.collection, self.data.lengths[1])

    @cached_property
    def _mixed_memory(self) -> Memory | None:
        """The memory whose retrieval scores the model mixes with its own; None = it mixes none."""
        return (self.memory or memory_of(self.data).open()) if self.model.mix_retriever else None

    def predict(
        self, queries: str | Sequence[str], k: int = 10, batch_size: int = 256
    ) -> list[list[RankedDocument]]:
        """The best k documents of the collection for each query, best first; among equal scores the earlier one."""
        queries = as_texts(queries, "query")
        check_count("k", k, MOST_HITS)
        check_count("batch_size", batch_size)
        if not queries:
            return []
        rows = Rows.from_lists(queries, source="queries")
        split = self.data.split_of(rows, self.collection, self._tokens, self._mixed_memory)
        return self.rank_split(split, k, batch_size=batch_size)

    def rank_split(
        self,
        split: ClickSplit,
        k: int,
        queries: int | None = None,
        batch_size: int = 256,
        judged: bool = False,
    ) -> list[list[RankedDocument]]:
        """The best k documents for a split's first queries (None: all), with `judged` among their judged ones."""
        dataset = RankingDataset(self.data, split, self.model.batch_contents("predict"), judged)
        with evaluating(self.model):
            documents = None if judged else self._documents
            if documents is None:
                documents = self.model.encode_collection(dataset, batch_size)
            if not judged:  # later calls rank the same collection
                self._documents = documents
            ranked: list[list[RankedDocument]] = []
            for batch in dataset.batches(batch_size, queries):
                ranked += self._best(dataset, batch, documents, k)
        return ranked

    def _best(
        self, dataset: RankingDataset, batch: QueryBatch, documents: Any, k: int
    ) -> Iterator[list[RankedDocument]]:
        (score,) = self.model.ranking_scores(on_device(batch, self.model), documents)
        # A stable sort: among equal scores, the earlier document is first.
        order = score.argsort(dim=1, descending=True, stable=True)[:, :k]
        best, table = score.gather(1, order).cpu().tolist(), dataset.split.judgements.documents
        for columns, scores in zip(order.cpu().numpy(), best, strict=True):
            rows = dataset.documents[columns].tolist()
            ids = table.table.column("id").take(rows).to_pylist()
            ranked = zip(ids, scores, rows, strict=True)
            # A document that is no candidate of the query has the score -inf.
            yield [
                RankedDocument(id_, table.texts[row], value, row)
                for id_, value, row in ranked
                if value > -math.inf
            ]

    @override
    def encode(
        self, texts: list[str], batch_size: int = 256, bar: ProgressBar | None = None, queries: bool = False
    ) -> NDArray[np.float32]:
        side = self.side_of(texts, queries)
        with evaluating(self.model):
            blocks = longest_first(side.tokens.sizes, batch_size)
            vectors = encode_blocks(self.model, side, np.arange(len(texts)), blocks, queries, bar)
        return np.asarray(vectors.cpu())

    def side_of(self, texts: list[str], queries: bool) -> Side:
        """Return texts that are queries, or documents, as batches are made of them."""
        rows, nothing = (Rows.from_lists(some, source="texts") for some in (texts, []))
        split = self.data.split_of(*((rows, nothing) if queries else (nothing, rows)))
        of_queries, of_documents = self.data.sides(split, self.model.batch_contents("predict"))
        return of_queries if queries else of_documents

    @override
    def records(
        self,
        source: str,
        batch_size: int = 256,
        text_column: TextColumn | None = None,
        k: int | None = None,
        run_name: str | None = None,
        rerank: str | None = None,
        shard: Shard = WHOLE,
    ) -> Iterator[PlainDict] | Iterator[str]:
        """The best documents of the collection for each query.

        Args:
            source: see `Predictor.records`; ids are read from a .jsonl, .parquet or .tsv table as well.
            text_column: the queries' column or columns, in a table; null: as in training.
            k: documents a query; null: 10, with `rerank` all of the run.
            run_name: write lines of a TREC run, `query Q0 document rank score name`, with this name.
            rerank: a TREC run, whose documents alone are ranked for its queries.
        """
        if k is not None:
            check_count("k", k, MOST_HITS)
        if rerank is not None and shard.count > 1:
            raise InputError("--rerank: this model ranks the documents of all queries together; omit --shard")
        if source == "-" or source.endswith(".txt"):
            queries = Rows.from_lists(texts_in(source, {}), source=source)
        else:
            queries = read_identified(source, text_column or self.data.options.query_column)
        records = self._ranked(queries.part(shard.rows(len(queries), BLOCK)), k or 10, batch_size)
        if rerank is not None:
            records = self._reranked(queries, rerank, k, batch_size)
        return records_or_lines(records, "documents", run_name)

    def _reranked(self, queries: Rows, run: str, k: int | None, batch_size: int) -> Iterator[PlainDict]:
        """The record of each query of a run, with its documents ranked."""
        judgements = read_candidates(run, queries, self.collection, "the model's collection")
        split = self.data.split_of(queries, self.collection, self._tokens, self._mixed_memory)
        k = k or int(judgements.lists.counts.max())
        ranked = self.rank_split(replace(split, judgements=judgements), k, batch_size=batch_size, judged=True)
        ids, texts = queries.ids, queries.texts
        for number in np.flatnonzero(judgements.lists.counts).tolist():
            yield _record(ids[number], texts[number], ranked[number])

    @override
    def text_records(self, texts: Sequence[str]) -> Iterator[PlainDict]:
        return self._ranked(Rows.from_lists(texts, source="queries"), 10, 256)

    def _ranked(self, queries: Rows, k: int, batch_size: int) -> Iterator[PlainDict]:
        """The record of each query, with its best documents."""
        for block in blocks_of(zip(queries.ids, queries.texts, strict=True)):
            ids, texts = zip(*block, strict=True)
            yield from map(_record, ids, texts, self.predict(texts, k, batch_size))


def encode_blocks(
    model: Any,
    side: Side,
    rows: NDArray[np.int64],
    blocks: Iterable[NDArray[np.int64]],
    queries: bool,
    bar: ProgressBar | None = None,
) -> Tensor:
    """Embeddings of rows [n] of a side: float32 [n, d] on the model's device; 0 for positions outside of the blocks."""
    vectors = torch.zeros(len(rows), model.vector_size, device=model.device)
    for block in blocks:
        vectors[block] = model.embed(on_device(side.batch(rows[block]), model), queries)
        if bar is not None:
            bar.update(len(block))
    return vectors


def _record(id_: str, query: str, ranked: Sequence[RankedDocument]) -> PlainDict:
    documents = [{"id": each.id, "text": each.text, "score": each.score} for each in ranked]
    return {"id": id_, "query": query, "documents": documents}


def retriever_scores(hit: Tensor, score: Tensor, documents: int) -> Tensor:
    """Scores [B, H] of hits int64 [B, H], -1 = none, over that of the best: float32 [B, D], 0 for other documents."""
    shares = score / score.amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    scores = shares.new_zeros(len(hit), documents + 1)
    return scores.scatter(1, hit.remainder(documents + 1), shares * (hit >= 0))[:, :documents]
