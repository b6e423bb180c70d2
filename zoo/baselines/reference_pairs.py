"""Scores of pairs of texts without a network: what a model of matching must beat to have learned anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.retrieval.base import Ranking
from datamodules.retrieval.embedded.analysis import Analyzer
from datamodules.retrieval.embedded.lucene import Statistics, bm25, length_bytes, length_weights, term_weights
from datamodules.text.tokenization import Lexicon, make_tokenizer
from zoo.tasks.fitted import Fitted, FittedNetwork
from zoo.tasks.matching.task import MatchingOutput, MatchingTask


class ScoreNetwork(FittedNetwork):
    """A score a pair, and where pairs are classified a threshold."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.fitted = {"threshold": 0.0}

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch."""
        score = self.score(batch).float().to(batch.first.device) - self.fitted["threshold"]
        columns = [score] if self.num_outputs == 1 else [-score / 2, score / 2]
        return MatchingOutput(torch.stack(columns, dim=1))

    def score(self, batch: MatchingBatch) -> Tensor:
        """Scores [P]; higher = matches better."""
        raise NotImplementedError

    def fit_to(self, seconds: Sequence[str]) -> None:
        """Learn from the distinct second texts of the training pairs."""


class ConstantScore(ScoreNetwork):
    """0."""

    def score(self, batch: MatchingBatch) -> Tensor:
        """See `ScoreNetwork.score`."""
        return torch.zeros(len(batch.first))


class PlaceScore(ScoreNetwork):
    """Earlier rows before later ones."""

    def score(self, batch: MatchingBatch) -> Tensor:
        """See `ScoreNetwork.score`."""
        return -batch.row.double()


class OverlapScore(ScoreNetwork):
    """Share of the first text's distinct words that are in the second one; 0 of a text without words."""

    def score(self, batch: MatchingBatch) -> Tensor:
        """See `ScoreNetwork.score`."""
        assert batch.first_string is not None
        assert batch.second_string is not None
        first, second = words_of(batch.first_string), words_of(batch.second_string)
        shares = [
            len(first[i] & second[j]) / max(1, len(first[i]))
            for i, j in zip(batch.first.tolist(), batch.second.tolist(), strict=True)
        ]
        return torch.tensor(shares, dtype=torch.float64)


def words_of(texts: Sequence[str]) -> list[set[str]]:
    """The distinct words of each text, lower-cased."""
    lexicon = Lexicon()
    encoded = list(make_tokenizer("words", lowercase=True).encode(texts, lexicon))
    words = list(lexicon)
    return [{words[number] for number in text} for text in encoded]


class BM25Score(ScoreNetwork):
    """BM25 of the second text for the first as its query, by the formulas and the analyzer of the retrievers."""

    def __init__(self, ranking: Ranking, num_outputs: int) -> None:
        super().__init__(num_outputs)
        self.ranking = ranking
        self.analyzer = Analyzer(ranking.analyzer)

    def fit_to(self, seconds: Sequence[str]) -> None:
        """Count in how many texts a term is, and how long the texts are."""
        documents = [self.analyzer.terms(text) for text in seconds]
        frequency = Counter(term for terms in documents for term in set(terms))
        self.fitted |= {
            "terms": list(frequency),
            "texts_with_term": torch.tensor(list(frequency.values())),
            "texts": sum(bool(terms) for terms in documents),
            "tokens": sum(map(len, documents)),
        }

    def score(self, batch: MatchingBatch) -> Tensor:
        """See `ScoreNetwork.score`."""
        assert batch.first_string is not None
        assert batch.second_string is not None
        fitted = self.fitted
        statistics = Statistics(fitted["texts"], fitted["tokens"])
        # The last weight is that of a term that no training text has.
        counts = np.append(fitted["texts_with_term"].numpy(), 0)
        by_term = term_weights(self.ranking, statistics, counts, counts)
        number = {term: i for i, term in enumerate(fitted["terms"])}
        queries = [Counter(self.analyzer.terms(text)) for text in batch.first_string]
        documents = [self.analyzer.terms(text) for text in batch.second_string]
        lengths = np.array([len(terms) for terms in documents], np.int64)
        by_length = length_weights(self.ranking, statistics)[length_bytes(lengths)]
        frequencies = [Counter(terms) for terms in documents]
        scores = [
            sum(
                count * bm25(by_term[number.get(term, -1)], by_length[j], frequencies[j][term])
                for term, count in queries[i].items()
                if term in frequencies[j]
            )
            for i, j in zip(batch.first.tolist(), batch.second.tolist(), strict=True)
        ]
        return torch.tensor(scores, dtype=torch.float64)


class PairReference(Fitted, MatchingTask):
    """Base of the scores that need no training; pairs are classified by the threshold that is best in training."""

    def new_network(self, num_outputs: int) -> ScoreNetwork:
        """The score."""
        raise NotImplementedError

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return self.new_network(spec.num_outputs)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        split = data.split("train")
        self.network.fit_to(split.pairs.second.texts[:])
        if data.spec.goal == "classification":
            dataset = data.dataset(split)
            batches = (
                dataset.__getitems__(range(i, min(i + 256, len(dataset))))
                for i in range(0, len(dataset), 256)
            )
            scores = np.concatenate([self.network.score(batch).numpy() for batch in batches])
            self.network.fitted["threshold"] = best_threshold(scores, split.pairs.target)


class RandomOrder(PairReference):
    """The same score for all pairs: since ties count the mean over their orders, a random order's expectation."""

    paper = "no publication: a matcher that looks at no text"

    @override
    def new_network(self, num_outputs: int) -> ScoreNetwork:
        return ConstantScore(num_outputs)


class FileOrder(PairReference):
    """Pairs that come earlier in the table first: what a constant score seems to earn where ties follow it."""

    paper = "no publication: the order of the file"

    @override
    def new_network(self, num_outputs: int) -> ScoreNetwork:
        return PlaceScore(num_outputs)


class WordOverlap(PairReference):
    """Share of the first text's distinct words that are in the second one."""

    paper = "no publication: shared words"
    reads_strings = True

    @override
    def new_network(self, num_outputs: int) -> ScoreNetwork:
        return OverlapScore(num_outputs)


class PairBM25(PairReference):
    """BM25 of the second text for the first as its query, with the statistics of the training's second texts."""

    paper = "Robertson et al.: Okapi at TREC-3 (1994), as Lucene computes it"
    reads_strings = True

    def __init__(self, k1: float = 1.2, b: float = 0.75, **shared: Any) -> None:
        """Configure the ranking.

        Args:
            k1: saturation of the term frequency.
            b: weight of the document length.
            **shared: options of `MatchingTask` and `Task`.
        """
        super().__init__(**shared)
        Ranking(k1=k1, b=b)  # refuses what is out of range

    @override
    def new_network(self, num_outputs: int) -> ScoreNetwork:
        return BM25Score(Ranking(k1=self.options.k1, b=self.options.b), num_outputs)


def best_threshold(score: NDArray[np.floating], target: NDArray[np.floating]) -> float:
    """The score above which pairs are to be called matches for most of them to be called right.

    Args:
        score: [P].
        target: [P]; above 0 = matches.

    Returns:
        The threshold, halfway between two scores, or 1 beyond the last where all or none should match.
    """
    values, group = np.unique(score, return_inverse=True)
    matches = np.bincount(group, weights=target > 0, minlength=len(values))
    others = np.bincount(group, minlength=len(values)) - matches
    # Right with a threshold below value i: the others below it, and the matches from it on.
    right = np.concatenate([[0], others.cumsum()]) + matches.sum() - np.concatenate([[0], matches.cumsum()])
    if not len(values):
        return 0.0
    edges = np.concatenate([values[:1] - 1, (values[:-1] + values[1:]) / 2, values[-1:] + 1])
    return float(edges[int(right.argmax())])
