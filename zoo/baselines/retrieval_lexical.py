"""Rankings of a collection by shared terms: BM25 and a unigram language model, as the retrievers compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.core.types import PlainDict
from datamodules.retrieval.base import AnalyzerName, Ranking, Similarity
from datamodules.retrieval.embedded.lucene import bm25, lm_dirichlet
from zoo.baselines.fitted_ranking import FittedRanking
from zoo.baselines.term_statistics import TermStatistics

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class TermRanking(FittedRanking["csr_matrix"]):
    """Base of the rankings by the sum, over a query's terms, of a contribution of the term and the document."""

    #: name of the ranking among those of the retrievers, with whose parameters it is computed.
    similarity: ClassVar[Similarity]
    #: of a term's weight, a length's weight and a number of occurrences.
    contribution: Callable[[float, float, int], np.float32]

    def __init__(self, analyzer: AnalyzerName = "standard", **shared: Any) -> None:
        """Configure the ranking.

        Args:
            analyzer: splits texts into terms, see `Ranking`.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        self.statistics = TermStatistics(Ranking(self.similarity, analyzer))

    @override
    def fit(self, documents: Sequence[str], seed: int) -> PlainDict:
        return self.statistics.count(documents)

    @override
    def read(self, documents: Sequence[str]) -> csr_matrix:
        """The contribution of each term to the score of each document: [documents, terms]."""
        from scipy.sparse import csr_matrix

        terms = self.statistics.terms(documents)
        of_term, of_length = self.statistics.weights(self.fitted, terms)
        counts = self._counts(terms)
        row = np.repeat(np.arange(len(documents)), np.diff(counts.indptr))
        arguments = zip(of_term[counts.indices], of_length[row], counts.data, strict=True)
        values = np.array([self.contribution(*each) for each in arguments], np.float64)
        return csr_matrix((values, counts.indices, counts.indptr), shape=counts.shape)

    @override
    def scores(self, queries: Sequence[str], documents: csr_matrix) -> Tensor:
        counts = self._counts(self.statistics.terms(queries))
        return torch.from_numpy((counts @ documents.T).toarray().astype(np.float32))

    def _counts(self, texts: Sequence[Sequence[str]]) -> csr_matrix:
        """The number of occurrences in each text of each term of the collection, [texts, terms]; others are skipped."""
        from scipy.sparse import csr_matrix

        number = {term: i for i, term in enumerate(self.fitted["terms"])}
        counts = [sorted(Counter(number[term] for term in text if term in number).items()) for text in texts]
        pairs: NDArray[np.int64] = np.array([pair for row in counts for pair in row], np.int64).reshape(-1, 2)
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in counts])])
        return csr_matrix((pairs[:, 1], pairs[:, 0], offsets), shape=(len(texts), len(number)))


class RetrievalBM25(TermRanking):
    """BM25 of a document's terms for a query."""

    similarity = "BM25"
    contribution = staticmethod(bm25)


class RetrievalULM(TermRanking):
    """Likelihood of a query in a document's unigram language model with Dirichlet smoothing."""

    similarity = "LMDirichlet"
    contribution = staticmethod(lm_dirichlet)
