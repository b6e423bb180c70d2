"""References without training, for texts and for pairs: the lowest scores that a model should exceed."""

from __future__ import annotations

from abc import abstractmethod
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import ClassificationBatch, MatchingBatch
from datamodules.classification import label_numbers
from datamodules.core.errors import InputError
from datamodules.retrieval.base import Ranking
from datamodules.text.tokenization import Lexicon, make_tokenizer
from zoo.baselines.rankings import contributions, count_collection, count_terms, split_terms
from zoo.layers.interactions import pair_logits
from zoo.layers.vote import count_votes, vote
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.fitted import Fitted
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.outputs import ClassificationOutput, MatchingOutput

#: Share of the votes in a prediction; class frequencies, with the rest, decide where votes are equal or missing.
VOTES = 1 - 1e-3
_RANKING = Ranking()


class Majority(Fitted, ClassificationTask):
    """The most frequent training label for every text."""

    uses_memory = False

    @override
    def finish(self, data: DataModule) -> None:
        labels = data.spec.labels
        numbers = label_numbers(data.split("train").rows, labels)
        self.fitted = {"counts": torch.from_numpy(np.bincount(numbers, minlength=len(labels)))}

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        return ClassificationOutput(self.prior(batch), torch.zeros_like(batch.memory_score))

    def prior(self, batch: ClassificationBatch) -> Tensor:
        """float32 [B, C]: log frequencies of the classes in the training rows, the same for every text."""
        counts: Tensor = self.fitted["counts"].to(batch.target.device)
        return (counts / counts.sum()).clamp(min=1e-9).log().expand(len(batch.target), -1)


class NeighborVote(Majority):
    """The label with most votes among a text's memories: with BM25, the usual nearest-neighbor baseline."""

    uses_memory = True

    @override
    def finish(self, data: DataModule) -> None:
        if data.spec.memory_labels != data.spec.labels:
            raise InputError("NeighborVote: the memories have no labels or another task's")
        super().finish(data)

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Count the votes; a text without memories gets the most frequent class."""
        score = batch.memory_score
        shares = vote(torch.zeros_like(score), score, batch.memory_mask, 0.0)
        prior = self.prior(batch).softmax(dim=1)
        votes = count_votes(shares, batch.memory_target, prior.shape[1])
        total = votes.sum(dim=1, keepdim=True)
        mixed = (1 - VOTES) * prior + VOTES * torch.where(total > 0, votes / total.clamp(min=1e-6), prior)
        return ClassificationOutput(mixed.clamp(min=1e-9).log(), shares)


class PairReference(Fitted, MatchingTask):
    """Base of the reference scores; pairs are classified by the threshold that is best in training."""

    @abstractmethod
    def score(self, batch: MatchingBatch) -> Tensor:
        """Scores [P]; higher = matches better."""

    @override
    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        score = self.score(batch).float().to(batch.first.device) - self.fitted["threshold"]
        return MatchingOutput(pair_logits(score, self.spec.num_outputs))

    @override
    def finish(self, data: DataModule) -> None:
        self.fitted["threshold"] = 0.0
        if data.spec.goal == "classification":
            split = data.split("train")
            batches = data.dataset(split, self.batch_contents("train")).batches(256)
            scores = np.concatenate([self.score(batch).numpy() for batch in batches])
            self.fitted["threshold"] = best_threshold(scores, split.pairs.target)


class RandomOrder(PairReference):
    """The same score for all pairs: ties count as the mean over their orders, the expectation of a random order."""

    @override
    def score(self, batch: MatchingBatch) -> Tensor:
        return torch.zeros(len(batch.first))


class WordOverlap(PairReference):
    """The share of the first text's distinct words that the second one has; 0 for a text without words."""

    reads_strings = True

    @override
    def score(self, batch: MatchingBatch) -> Tensor:
        assert batch.first_string is not None
        assert batch.second_string is not None
        tokenizer, lexicon = make_tokenizer("words", lowercase=True), Lexicon()
        both = batch.first_string, batch.second_string
        first, second = ([set(words) for words in tokenizer.encode(texts, lexicon)] for texts in both)
        pairs = zip(batch.first.tolist(), batch.second.tolist(), strict=True)
        shares = [len(first[i] & second[j]) / max(1, len(first[i])) for i, j in pairs]
        return torch.tensor(shares, dtype=torch.float64)


class PairBM25(PairReference):
    """BM25 of the second text for the first as its query, by the formulas and the analyzer of the retrievers.

    The statistics are those of the distinct second texts of the training pairs.
    """

    reads_strings = True

    @override
    def finish(self, data: DataModule) -> None:
        self.fitted = count_collection(split_terms(_RANKING, data.split("train").pairs.second.texts[:]))
        super().finish(data)

    @override
    def score(self, batch: MatchingBatch) -> Tensor:
        assert batch.first_string is not None
        assert batch.second_string is not None
        texts = batch.first_string, batch.second_string
        queries, documents = (split_terms(_RANKING, each) for each in texts)
        terms = list(dict.fromkeys(chain(self.fitted["terms"], *documents)))
        counts = count_terms(queries, terms)[batch.first.tolist()]
        shares = contributions(_RANKING, self.fitted, documents, terms)[batch.second.tolist()]
        return torch.from_numpy(np.asarray(counts.multiply(shares).sum(axis=1)).ravel())


def best_threshold(score: NDArray[np.floating], target: NDArray[np.floating]) -> float:
    """The best threshold on scores [P]: halfway between two of them, or 1 beyond where all or no pairs should match."""
    values, group = np.unique(score, return_inverse=True)
    matches = np.bincount(group, weights=target > 0, minlength=len(values))
    others = np.bincount(group, minlength=len(values)) - matches
    # Correct with a threshold below value i: the others below it, and the matches from it on.
    correct = np.concatenate([[0], others.cumsum()]) + matches.sum() - np.concatenate([[0], matches.cumsum()])
    if not len(values):
        return 0.0
    edges = np.concatenate([values[:1] - 1, (values[:-1] + values[1:]) / 2, values[-1:] + 1])
    return float(edges[int(correct.argmax())])
