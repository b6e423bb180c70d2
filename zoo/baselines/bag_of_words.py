"""Texts as bags of words or n-grams, split by scikit-learn, optionally expanded by memories; a linear classifier.

`NGrams` is the rows BoW, n-grams and n-grams TF-IDF of Xiang Zhang, Junbo Zhao, Yann LeCun: "Character-level
Convolutional Networks for Text Classification", NIPS 2015, Section 3.1.

`BOWRocchio` is the row BOW_RF of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short Text
Expansion", KDD 2017. Its row BOW, without memories, is `TfidfSVM` with `max_ngram=1`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.classification import ClassificationDataModule, label_numbers
from datamodules.core.errors import InputError
from datamodules.core.types import Positive, Share, Size
from zoo.layers.tfidf import TextVectorizer, planes_of
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.fitted import Fitted
from zoo.tasks.outputs import ClassificationOutput

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model._base import LinearClassifierMixin

#: Weights of the memories that are compared on the validation rows.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Rows that are vectorized together.
BLOCK = 1024


class LinearBag(Fitted, ClassificationTask):
    """Base of the linear classifiers of n-grams, in float64 as in scikit-learn.

    Args:
        max_ngram: words of the longest n-gram; 1 = a bag of words.
        c: weight of training errors against small weights.
    """

    reads_strings = True
    uses_memory = False

    def __init__(self, max_ngram: Size = 2, c: Positive = 1.0, **shared: Any) -> None:
        super().__init__(**shared)
        self.c = c
        #: TF-IDF with 1 + log tf.
        self.vectorizer = TextVectorizer(sublinear_tf=True, ngram_range=(1, max_ngram))

    @abstractmethod
    def make_classifier(self) -> LinearClassifierMixin:
        """Make the classifier of scikit-learn that is fitted to vectors and the numbers of their classes."""

    @override
    def finish(self, data: DataModule) -> None:
        rows = data.split("train").rows
        vectors = self.vectorizer.fit(rows.texts, rows.source)
        self.fitted = {"vectorizer": self.vectorizer.state}
        # Fitted to the classes' numbers, so that weights are in their order.
        self.keep(self.make_classifier().fit(vectors, label_numbers(rows, data.spec.labels)))

    def keep(self, classifier: LinearClassifierMixin) -> None:
        """Keep a fitted classifier of these vectors."""
        weight, bias = planes_of(classifier, halve=hasattr(classifier, "predict_proba"))
        self.fitted |= {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}

    def vectors_of(self, texts: Sequence[str]) -> csr_matrix:
        """The vectors [n, V] of texts."""
        if self.fitted["vectorizer"] is not self.vectorizer.state:
            self.vectorizer.use(self.fitted["vectorizer"])  # of a restored model
        return self.vectorizer.transform(texts)

    def classify(
        self, vectors: csr_matrix, batch: ClassificationBatch, shares: Tensor
    ) -> ClassificationOutput:
        """Distances from the classes' planes, float32 [B, C], for vectors [B, V]; `shares` [B, K] of the memories."""
        products = vectors @ self.fitted["weight"].numpy().T
        distance = torch.from_numpy(products + self.fitted["bias"].numpy()).float()
        return ClassificationOutput(distance.to(batch.target.device), shares.to(batch.memory_score))

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        assert batch.text_string is not None
        return self.classify(self.vectors_of(batch.text_string), batch, torch.zeros_like(batch.memory_score))


class TfidfSVM(LinearBag):
    """TF-IDF of words and pairs of words, and a linear support vector machine; `probability` only orders classes."""

    @override
    def make_classifier(self) -> LinearClassifierMixin:
        from sklearn.svm import LinearSVC

        return LinearSVC(random_state=0, C=self.c)


class NGrams(LinearBag):
    """A bag of the most frequent n-grams and multinomial logistic regression.

    Args:
        max_ngram: words of the longest n-gram; 1 = a bag of words.
        max_features: maximum number of n-grams, the most frequent; the paper's bag of words has 50,000.
        tfidf: weight counts by inverse document frequency, and give each text the length 1.
    """

    def __init__(
        self, max_ngram: Size = 5, max_features: Size = 500_000, tfidf: bool = False, **shared: Any
    ) -> None:
        super().__init__(max_ngram=max_ngram, **shared)
        self.vectorizer = TextVectorizer(tfidf, ngram_range=(1, max_ngram), max_features=max_features)

    @override
    def make_classifier(self) -> LinearClassifierMixin:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=self.c, max_iter=1000)


class BOWRocchio(TfidfSVM):
    """`TfidfSVM` with vectors that are moved towards the mean of their memories' vectors (Equation 14).

    Args:
        weight: lambda, the memories' share of a text's vector; None = the best on the validation rows.
        max_ngram: words of the longest n-gram; 1 = a bag of words.
    """

    uses_memory = True

    def __init__(self, weight: Share | None = None, max_ngram: Size = 1, **shared: Any) -> None:
        super().__init__(max_ngram=max_ngram, **shared)
        self.weight = weight

    @override
    def check_data(self, data: ClassificationDataModule) -> None:
        super().check_data(data)
        options = data.options
        if self.weight is None and not (options.validation_file or options.validation_split):
            raise InputError("model.weight: no validation rows choose it; set it, or data.validation_split")

    @override
    def finish(self, data: DataModule) -> None:
        split = data.split("train")
        texts = list(split.rows.texts)
        if data.options.memory is not None:  # not the training texts, so it has other words
            texts += split.neighbors.memories.texts
        self.vectorizer.fit(texts, split.rows.source)
        self.fitted = {"vectorizer": self.vectorizer.state}
        weights = WEIGHTS if self.weight is None else (self.weight,)
        vectors, labels = self._vectors_of_split(data, "train")
        candidates = (
            (weight, self.make_classifier().fit(mixed(*vectors, weight), labels)) for weight in weights
        )
        if len(weights) == 1:
            weight, machine = next(candidates)
        else:
            held_out, held_out_labels = self._vectors_of_split(data, "validation")
            weight, machine = max(  # the first of equals
                candidates,
                key=lambda each: (each[1].predict(mixed(*held_out, each[0])) == held_out_labels).mean(),
            )
        self.keep(machine)
        self.fitted["memory_weight"] = weight

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; each memory's weight is its share of the expanded vector."""
        weight = self.fitted["memory_weight"]
        vectors = mixed(*self.expanded(batch), weight)
        return self.classify(vectors, batch, weight * shares_of(batch.memory_mask))

    def expanded(self, batch: ClassificationBatch) -> tuple[csr_matrix, csr_matrix]:
        """The vectors [B, V] of a batch's texts, and the means of their memories; without any, the text's own."""
        from scipy.sparse import csr_matrix, diags_array

        assert batch.text_string is not None
        own, mask = self.vectors_of(batch.text_string), batch.memory_mask.cpu()
        if not mask.any():
            return own, own
        assert batch.memory_string is not None
        memories = self.vectors_of(batch.memory_string)
        row, column = mask.nonzero(as_tuple=True)
        shares, number = shares_of(mask)[row, column].numpy(), batch.memory.cpu()[row, column].numpy()
        means = csr_matrix((shares, (row.numpy(), number)), shape=(len(mask), memories.shape[0])) @ memories
        return own, means + diags_array((~mask.any(dim=1)).double().numpy()) @ own

    def _vectors_of_split(
        self, data: DataModule, name: str
    ) -> tuple[tuple[csr_matrix, csr_matrix], NDArray[np.int64]]:
        """Vectors of the texts of a split and of their memories, as for predictions, and the texts' classes [n]."""
        from scipy.sparse import vstack

        split = data.split(name)
        batches = data.dataset(split, BatchContents(strings=True)).batches(BLOCK)
        own, means = (vstack(blocks, "csr") for blocks in zip(*map(self.expanded, batches), strict=True))
        return (own, means), label_numbers(split.rows, data.spec.labels)


def shares_of(mask: Tensor) -> Tensor:
    """The share of each memory among those of its text, float64 [B, K], 0 where the mask, bool [B, K], is False."""
    return mask / mask.sum(dim=1, keepdim=True).clamp(min=1).double()


def mixed(own: csr_matrix, memories: csr_matrix, weight: float) -> csr_matrix:
    """Equation 14: (1 - weight) times the vectors of texts plus weight times the means of their memories."""
    return (1 - weight) * own + weight * memories
