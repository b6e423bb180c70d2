"""Labels of texts without a network: what a classifier must beat to have learned anything.

`Majority` knows how frequent the classes are, `NeighborVote` counts the labels of a text's memories, `TfidfSVM` is the
usual linear model over words and pairs of words.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from zoo.layers.vote import count_votes, mix_in, vote
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask
from zoo.tasks.fitted import Fitted, FittedNetwork

#: What the classes' frequency counts for beside the neighbours' votes: it decides where these are equal or missing.
PRIOR = 1e-3


class PriorNetwork(FittedNetwork):
    """The classes' frequency in the training rows."""

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """The same for every text."""
        return ClassificationOutput(self.prior(batch), torch.zeros_like(batch.memory_score))

    def prior(self, batch: ClassificationBatch) -> Tensor:
        """float32 [B, C]: log frequencies."""
        counts: Tensor = self.fitted["counts"].to(batch.target.device)
        return (counts / counts.sum()).clamp(min=1e-9).log().expand(len(batch.target), -1)


class VoteNetwork(PriorNetwork):
    """The labels of the memories, each weighed by (score / best score) ** power."""

    def __init__(self, score_power: float) -> None:
        super().__init__()
        self.score_power = score_power

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Count the votes; a text that finds none gets the most frequent class."""
        score = batch.memory_score
        shares = vote(torch.zeros_like(score), score, batch.memory_mask, 0.0, self.score_power)
        prior = self.prior(batch)
        votes = count_votes(shares, batch.memory_target, prior.shape[1])
        return ClassificationOutput(mix_in(prior, votes, 1 - PRIOR), shares)


class SVMNetwork(FittedNetwork):
    """TF-IDF of n-grams and a linear support vector machine, as scikit-learn computes them."""

    def __init__(self, max_ngram: int) -> None:
        super().__init__()
        self.max_ngram = max_ngram

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Distances from the classes' planes; they are no logarithms of probabilities."""
        assert batch.text_string is not None
        distance = self.distances(self.vectorizer.transform(batch.text_string))
        return ClassificationOutput(distance.to(batch.target.device), torch.zeros_like(batch.memory_score))

    def distances(self, vectors: Any) -> Tensor:
        """float32 [B, C] for sparse vectors of n-grams [B, V]."""
        products = vectors @ self.fitted["weight"].numpy().T
        distance = torch.from_numpy(products + self.fitted["bias"].numpy()).float()
        return torch.cat([-distance, distance], dim=1) if distance.shape[1] == 1 else distance

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """From the state dict."""
        super().set_extra_state(state)
        self.__dict__.pop("vectorizer", None)

    @cached_property
    def vectorizer(self) -> Any:
        """Makes TF-IDF vectors of texts, as in the training."""
        made = new_vectorizer(self.max_ngram, {ngram: i for i, ngram in enumerate(self.fitted["ngrams"])})
        made.idf_ = self.fitted["idf"].numpy()
        return made


def new_vectorizer(max_ngram: int, vocabulary: dict[str, int] | None = None) -> Any:
    """TF-IDF of words and n-grams of up to so many words, with 1 + log tf."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # a second, that other models need not pay

    return TfidfVectorizer(ngram_range=(1, max_ngram), sublinear_tf=True, vocabulary=vocabulary)


def fit_vectorizer(vectorizer: Any, texts: Any, source: str) -> Any:
    """Sparse vectors of texts [n, V].

    Raises:
        InputError: no text has a word.
    """
    try:
        return vectorizer.fit_transform(texts)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error


class Majority(Fitted, ClassificationTask):
    """The most frequent training label for every text."""

    paper = "no publication: a classifier that looks at no text"

    @property
    @override
    def uses_memory(self) -> bool:
        return False

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return PriorNetwork()

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        labels = data.spec.labels
        numbers = label_numbers(data.split("train").rows, labels)
        self.network.fitted = {"counts": torch.from_numpy(np.bincount(numbers, minlength=len(labels)))}


class NeighborVote(Majority):
    """The label with most votes among a text's memories: with BM25, the usual nearest-neighbour baseline."""

    paper = "no publication: k nearest neighbours by the retriever's score"

    def __init__(self, score_power: float = 3.0, **shared: Any) -> None:
        """Choose how votes are weighed.

        Args:
            score_power: a memory's vote counts (score / best score) to this power.
            **shared: options of `Task`.
        """
        super().__init__(**shared)

    @property
    @override
    def uses_memory(self) -> bool:
        return True

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        if spec.memory_labels != spec.labels:
            raise InputError(
                "NeighborVote: the memories have no labels or another task's, so they can't vote"
            )
        return VoteNetwork(self.options.score_power)


class TfidfSVM(Fitted, ClassificationTask):
    """TF-IDF of words and pairs of words with a linear support vector machine.

    It reads the texts themselves, whole, by scikit-learn's own rule for words. Its `probability` only orders classes.
    """

    paper = "no publication: scikit-learn's TfidfVectorizer and LinearSVC"
    reads_strings = True

    def __init__(self, max_ngram: int = 2, c: float = 1.0, **shared: Any) -> None:
        """Configure vectors and classifier.

        Args:
            max_ngram: words of the longest n-gram.
            c: weight of training errors against a small weight vector.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        if max_ngram < 1 or not c > 0:
            raise InputError(f"model.max_ngram={max_ngram}, model.c={c}: use at least 1, and more than 0")

    @property
    @override
    def uses_memory(self) -> bool:
        return False

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return SVMNetwork(self.options.max_ngram)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        from sklearn.svm import LinearSVC  # a second, that other models need not pay

        rows = data.split("train").rows
        vectorizer = new_vectorizer(self.options.max_ngram)
        vectors = fit_vectorizer(vectorizer, rows.texts, rows.source)
        # Fitted to the classes' numbers, so that weights are in their order.
        machine = LinearSVC(random_state=0, C=self.options.c)
        machine.fit(vectors, label_numbers(rows, data.spec.labels))
        self.network.set_extra_state(
            {
                "ngrams": vectorizer.get_feature_names_out().tolist(),
                "idf": torch.from_numpy(vectorizer.idf_),
                "weight": torch.from_numpy(machine.coef_),
                "bias": torch.from_numpy(machine.intercept_),
            }
        )
