"""Statistics of a collection's terms, and the weights that the retrievers' formulas derive from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.core.types import PlainDict
from datamodules.retrieval.base import Ranking
from datamodules.retrieval.embedded.analysis import Analyzer
from datamodules.retrieval.embedded.lucene import Statistics, length_bytes, length_weights, term_weights


class TermStatistics:
    """Numbers of texts, terms and occurrences, kept as plain values."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking, self.analyzer = ranking, Analyzer(ranking.analyzer)

    def terms(self, texts: Sequence[str]) -> list[list[str]]:
        """The terms of each text."""
        return [self.analyzer.terms(text) for text in texts]

    def count(self, texts: Sequence[str]) -> PlainDict:
        """Count the terms of a collection."""
        terms = self.terms(texts)
        with_term = Counter(term for of_text in terms for term in set(of_text))
        occurrences = Counter(term for of_text in terms for term in of_text)
        return {
            "terms": list(with_term),
            "texts_with_term": torch.tensor(list(with_term.values())),
            "occurrences": torch.tensor([occurrences[term] for term in with_term]),
            "texts": sum(map(bool, terms)),
            "tokens": sum(map(len, terms)),
        }

    def weights(
        self, counts: PlainDict, terms: Sequence[Sequence[str]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The weight of each term [terms + 1], of which the last is that of others; and of n texts' lengths [n]."""
        with_term, occurrences = (
            np.append(counts[name].numpy(), 0) for name in ("texts_with_term", "occurrences")
        )
        statistics = Statistics(counts["texts"], counts["tokens"])
        lengths = np.array([len(of_text) for of_text in terms], np.int64)
        of_term = term_weights(self.ranking, statistics, with_term, occurrences)
        return of_term, length_weights(self.ranking, statistics)[length_bytes(lengths)]
