"""Texts as bags of words or n-grams, split by scikit-learn, optionally expanded by memories; a linear classifier.

`NGrams` is the rows BoW, n-grams and n-grams TF-IDF of Xiang Zhang, Junbo Zhao, Yann LeCun: "Character-level
Convolutional Networks for Text Classification", NIPS 2015, Section 3.1.

`BOWRocchio` is the row BOW_RF of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short Text
Expansion", KDD 2017. Its row BOW, without memories, is `TfidfSVM` with `max_ngram=1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.classification import label_numbers
from datamodules.core.types import Positive, Share, Size
from zoo.layers.tfidf import TextVectorizer, planes_of
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.fitted import Fitted
from zoo.tasks.outputs import ClassificationOutput

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model._base import LinearClassifierMixin

#: Weights of the memories that are compared on the validation rows.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
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

    def fit_vectors(self, texts: Sequence[str], source: str, **options: object) -> csr_matrix:
        """Fit the vectorizer to texts, with options of `TextVectorizer.fit`, and return their vectors [n, V]."""
        vectors = self.vectorizer.fit(texts, source, **options)
        self.fitted = {"vectorizer": self.vectorizer.state}
        return vectors

    def keep(self, classifier: LinearClassifierMixin, halve: bool) -> None:
        """Keep a fitted classifier of these vectors; see `planes_of`."""
        weight, bias = planes_of(classifier, halve)
        self.fitted |= {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}

    def vectors_of(self, texts: Sequence[str]) -> csr_matrix:
        """The vectors [n, V] of texts."""
        if self.fitted["vectorizer"] is not self.vectorizer.state:
            self.vectorizer.use(self.fitted["vectorizer"])  # of a restored model
        return self.vectorizer.transform(texts)

    def distances(self, vectors: csr_matrix) -> Tensor:
        """Distances from the classes' planes, float32 [B, C], for vectors [B, V]."""
        products = vectors @ self.fitted["weight"].numpy().T
        return torch.from_numpy(products + self.fitted["bias"].numpy()).float()

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        assert batch.text_string is not None
        distance = self.distances(self.vectors_of(batch.text_string))
        return ClassificationOutput(distance.to(batch.target.device), torch.zeros_like(batch.memory_score))


class TfidfSVM(LinearBag):
    """TF-IDF of words and pairs of words, and a linear support vector machine; `probability` only orders classes."""

    @override
    def finish(self, data: DataModule) -> None:
        from sklearn.svm import LinearSVC

        rows = data.split("train").rows
        vectors = self.fit_vectors(rows.texts, rows.source)
        # Fitted to the classes' numbers, so that weights are in their order.
        machine = LinearSVC(random_state=0, C=self.c).fit(vectors, label_numbers(rows, data.spec.labels))
        self.keep(machine, halve=False)


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
        self.max_features = max_features
        self.vectorizer = TextVectorizer(tfidf, ngram_range=(1, max_ngram))

    @override
    def finish(self, data: DataModule) -> None:
        from sklearn.linear_model import LogisticRegression

        rows = data.split("train").rows
        vectors = self.fit_vectors(rows.texts, rows.source, max_features=self.max_features)
        regression = LogisticRegression(C=self.c, max_iter=1000)
        regression.fit(vectors, label_numbers(rows, data.spec.labels))
        self.keep(regression, halve=True)


class RocchioVectors(NamedTuple):
    """Vectors [n, V] of n texts and the means [n, V] of their memories' vectors."""

    own: csr_matrix
    memories: csr_matrix
    shares: NDArray[np.float64]  #: [n, K], 1 / number of a text's memories, 0 where there is none.

    def mix(self, weight: float) -> csr_matrix:
        """Equation 14: (1 - weight) times the text plus weight times its memories; texts without memories stay."""
        from scipy.sparse import diags_array

        return diags_array(1 - weight * self.shares.any(axis=1)) @ self.own + weight * self.memories


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
    def finish(self, data: DataModule) -> None:
        from sklearn.svm import LinearSVC

        split = data.split("train")
        texts = list(split.rows.texts)
        if data.options.memory is not None:  # not the training texts, so it has other words
            texts += split.neighbors.memories.texts
        self.fit_vectors(texts, split.rows.source)
        weights = WEIGHTS if self.weight is None else (self.weight,)
        vectors, labels = self._vectors_of_split(data, "train")
        candidates = (
            (weight, LinearSVC(random_state=0, C=self.c).fit(vectors.mix(weight), labels))
            for weight in weights
        )
        if len(weights) == 1:
            weight, machine = next(candidates)
        else:
            held_out, held_out_labels = self._vectors_of_split(data, "validation")
            weight, machine = max(  # the first of equals
                candidates,
                key=lambda each: (each[1].predict(held_out.mix(each[0])) == held_out_labels).mean(),
            )
        self.keep(machine, halve=False)
        self.fitted["memory_weight"] = weight

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; each memory's weight is its share of the expanded vector."""
        vectors, weight = self.expanded(batch), self.fitted["memory_weight"]
        memory_weight = torch.from_numpy(weight * vectors.shares).to(batch.memory_score)
        distance = self.distances(vectors.mix(weight))
        return ClassificationOutput(distance.to(batch.target.device), memory_weight)

    def expanded(self, batch: ClassificationBatch) -> RocchioVectors:
        """The vectors of a batch's texts and memories."""
        from scipy.sparse import csr_matrix

        assert batch.text_string is not None
        own = self.vectors_of(batch.text_string)
        mask = batch.memory_mask.cpu().numpy()
        shares = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        if not mask.any():
            return RocchioVectors(own, csr_matrix(own.shape), shares)
        assert batch.memory_string is not None
        memories = self.vectors_of(batch.memory_string)
        row, column = mask.nonzero()
        entries = (shares[mask], (row, batch.memory.cpu().numpy()[row, column]))
        means = csr_matrix(entries, shape=(len(mask), memories.shape[0])) @ memories
        return RocchioVectors(own, means, shares)

    def _vectors_of_split(self, data: DataModule, name: str) -> tuple[RocchioVectors, NDArray[np.int64]]:
        """Vectors of the texts of a split, computed as for predictions, and their classes [n]."""
        from scipy.sparse import vstack

        split = data.split(name)
        batches = data.dataset(split, BatchContents(strings=True)).batches(BLOCK)
        blocks = [self.expanded(batch) for batch in batches]
        vectors = RocchioVectors(
            vstack([block.own for block in blocks], "csr"),
            vstack([block.memories for block in blocks], "csr"),
            np.concatenate([block.shares for block in blocks]),
        )
        return vectors, label_numbers(split.rows, data.spec.labels)
