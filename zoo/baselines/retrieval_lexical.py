"""Rankings of a collection by shared terms: BM25 and a unigram language model, as the retrievers compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClickBatch, ClickSpec, QueryBatch
from datamodules.clickthrough.dataset import RankingDataset
from datamodules.retrieval.base import AnalyzerName, Ranking
from datamodules.retrieval.embedded.analysis import Analyzer
from datamodules.retrieval.embedded.lucene import (
    Statistics,
    bm25,
    length_bytes,
    length_weights,
    lm_dirichlet,
    term_weights,
)
from zoo.tasks.fitted import Fitted, FittedNetwork
from zoo.tasks.retrieval.task import RetrievalTask


class TermNetwork(FittedNetwork):
    """A document's score: the sum, over a query's terms, of a number of the term and the document."""

    def __init__(self, ranking: Ranking) -> None:
        super().__init__()
        self.ranking = ranking
        self.analyzer = Analyzer(ranking.analyzer)

    def fit_to(self, documents: Sequence[str]) -> None:
        """Count in how many documents a term is, how often, and how long they are."""
        terms = [self.analyzer.terms(text) for text in documents]
        texts = Counter(term for one in terms for term in set(one))
        occurrences = Counter(term for one in terms for term in one)
        self.fitted = {
            "terms": list(texts),
            "texts_with_term": torch.tensor(list(texts.values())),
            "occurrences": torch.tensor([occurrences[term] for term in texts]),
            "texts": sum(bool(one) for one in terms),
            "tokens": sum(map(len, terms)),
        }

    def forward(self, batch: ClickBatch) -> Tensor:
        """The scores of a batch's documents for its queries: float32 [N, M]."""
        assert batch.query_string is not None
        assert batch.document_string is not None
        return self.scores(batch.query_string, self.weights(batch.document_string)).to(batch.query.device)

    def weights(self, documents: Sequence[str]) -> sparse.csr_matrix:
        """What each term adds to the score of each document: [documents, terms]."""
        fitted, ranking = self.fitted, self.ranking
        statistics = Statistics(fitted["texts"], fitted["tokens"])
        of_term = term_weights(
            ranking, statistics, fitted["texts_with_term"].numpy(), fitted["occurrences"].numpy()
        )
        share = bm25 if ranking.similarity == "BM25" else lm_dirichlet
        terms = [self.analyzer.terms(text) for text in documents]
        lengths = np.array([len(one) for one in terms], np.int64)
        of_length = length_weights(ranking, statistics)[length_bytes(lengths)]
        counts = self._counts(terms)
        row = np.repeat(np.arange(len(documents)), np.diff(counts.indptr))
        values = [
            share(weight, length, count)
            for weight, length, count in zip(
                of_term[counts.indices], of_length[row], counts.data, strict=True
            )
        ]
        return sparse.csr_matrix(
            (np.array(values, np.float64), counts.indices, counts.indptr), shape=counts.shape
        )

    def scores(self, queries: Sequence[str], weights: sparse.csr_matrix) -> Tensor:
        """The scores of documents, given as their weights, for queries: float32 [queries, documents]."""
        counts = self._counts([self.analyzer.terms(text) for text in queries])
        return torch.from_numpy((counts @ weights.T).toarray().astype(np.float32))

    def _counts(self, texts: Sequence[Sequence[str]]) -> sparse.csr_matrix:
        """How often each text has each term of the collection; other terms are left out."""
        number = {term: i for i, term in enumerate(self.fitted["terms"])}
        found = [sorted(Counter(number[term] for term in text if term in number).items()) for text in texts]
        pairs: NDArray[np.int64] = np.array([pair for one in found for pair in one], np.int64).reshape(-1, 2)
        offsets = np.concatenate([[0], np.cumsum([len(one) for one in found])])
        return sparse.csr_matrix((pairs[:, 1], pairs[:, 0], offsets), shape=(len(texts), len(number)))


class TermRanking(Fitted, RetrievalTask):
    """Base of the rankings that need no training: their statistics are those of the collection."""

    reads_strings = True

    def new_ranking(self) -> Ranking:
        """The formula with its parameters."""
        raise NotImplementedError

    @override
    def build_network(
        self, spec: ClickSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> TermNetwork:
        return TermNetwork(self.new_ranking())

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        self.network.fit_to(data.split("train").judgements.documents.texts[:])

    @override
    def encode_collection(
        self, dataset: RankingDataset, block: int, process: int = 0, processes: int = 1
    ) -> Any:
        # Every process makes all of it: it takes no longer than to send it around.
        documents = dataset.split.judgements.documents
        return self.network.weights([documents.texts[int(row)] for row in dataset.documents])

    @override
    def score(self, batch: QueryBatch, documents: Any) -> Tensor:
        assert batch.string is not None
        found: Tensor = self.network.scores(batch.string, documents).to(batch.row.device)
        return found


class RetrievalBM25(TermRanking):
    """BM25 of a document's terms for a query.

    Example:
        >>> model = RetrievalBM25(k1=1.2, b=0.75)
    """

    paper = "Robertson et al.: Okapi at TREC-3 (1994), as Lucene computes it"

    def __init__(
        self, k1: float = 1.2, b: float = 0.75, analyzer: AnalyzerName = "standard", **shared: Any
    ) -> None:
        """Configure the ranking.

        Args:
            k1: saturation of the term frequency.
            b: weight of the document length.
            analyzer: how texts become terms, see `Ranking`.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        self.new_ranking()  # refuses what is out of range

    @override
    def new_ranking(self) -> Ranking:
        options = self.options
        return Ranking("BM25", options.analyzer, k1=options.k1, b=options.b)


class RetrievalULM(TermRanking):
    """Likelihood of a query in a document's unigram language model with Dirichlet smoothing.

    Example:
        >>> model = RetrievalULM(mu=2000)
    """

    paper = (
        "Zhai, Lafferty: A Study of Smoothing Methods for Language Models Applied to Ad Hoc Information Retrieval"
        " (2001), as Lucene computes it"
    )

    def __init__(self, mu: float = 2000.0, analyzer: AnalyzerName = "standard", **shared: Any) -> None:
        """Configure the ranking.

        Args:
            mu: pseudo-count of the collection's words.
            analyzer: how texts become terms, see `Ranking`.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        self.new_ranking()

    @override
    def new_ranking(self) -> Ranking:
        return Ranking("LMDirichlet", self.options.analyzer, mu=self.options.mu)
