"""Texts as bags of words or n-grams, expanded by their memories or not, and a linear classifier.

`NGrams` are the rows BoW, n-grams and n-grams TF-IDF of Xiang Zhang, Junbo Zhao, Yann LeCun: "Character-level
Convolutional Networks for Text Classification", NIPS 2015, Section 3.1: counts, or TF-IDF, of the most frequent
n-grams, and multinomial logistic regression.

`BOWRocchio` is the row BOW_RF of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short Text
Expansion", KDD 2017: Rocchio's query expansion before a linear support vector machine. Its row BOW, without memories,
is `TfidfSVM` with `max_ngram=1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from zoo.baselines.reference_labels import SVMNetwork, TfidfSVM, fit_vectorizer, new_vectorizer
from zoo.tasks.base import check_sizes
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask
from zoo.tasks.fitted import Fitted, planes_of

#: Weights of the memories that are tried on the validation rows.
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Rows whose vectors are made together.
BLOCK = 1024


class NGramNetwork(SVMNetwork):
    """Counts or TF-IDF of n-grams and logistic regression, as scikit-learn computes them."""

    def __init__(self, max_ngram: int, tfidf: bool) -> None:
        super().__init__(max_ngram)
        self.tfidf = tfidf

    @cached_property
    def vectorizer(self) -> Any:
        """Makes vectors of texts, as in the training."""
        numbers = {ngram: i for i, ngram in enumerate(self.fitted["ngrams"])}
        made = ngram_vectorizer(self.max_ngram, self.tfidf, vocabulary=numbers)
        if self.tfidf:
            made.idf_ = self.fitted["idf"].numpy()
        return made


def ngram_vectorizer(max_ngram: int, tfidf: bool, **options: Any) -> Any:
    """Counts, or TF-IDF, of words and n-grams of up to so many words."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    return (TfidfVectorizer if tfidf else CountVectorizer)(ngram_range=(1, max_ngram), **options)


class NGrams(Fitted, ClassificationTask):
    """A bag of the most frequent n-grams and multinomial logistic regression.

    It reads the texts themselves, whole, by scikit-learn's own rule for words.

    Example:
        >>> model = NGrams(max_ngram=5, tfidf=True)
    """

    paper = "Zhang, Zhao, LeCun: Character-level Convolutional Networks for Text Classification (2015)"
    reads_strings = True

    def __init__(
        self,
        max_ngram: int = 5,
        max_features: int = 500_000,
        tfidf: bool = False,
        c: float = 1.0,
        **shared: Any,
    ) -> None:
        """Configure vectors and classifier.

        Args:
            max_ngram: words of the longest n-gram; 1 = a bag of words.
            max_features: n-grams that are kept, the most frequent; the paper's bag of words has 50,000.
            tfidf: weigh counts by the inverse document frequency, and give each text the length 1.
            c: weight of training errors against a small weight vector.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "max_ngram", "max_features")
        if not c > 0:
            raise InputError(f"model.c={c}: must be more than 0")

    @property
    @override
    def uses_memory(self) -> bool:
        return False

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return NGramNetwork(self.options.max_ngram, self.options.tfidf)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        from sklearn.linear_model import LogisticRegression

        rows, options = data.split("train").rows, self.options
        vectorizer = ngram_vectorizer(options.max_ngram, options.tfidf, max_features=options.max_features)
        vectors = fit_vectorizer(vectorizer, rows.texts, rows.source)
        regression = LogisticRegression(C=options.c, max_iter=1000)
        regression.fit(vectors, label_numbers(rows, data.spec.labels))
        weight, bias = planes_of(regression)
        self.network.set_extra_state(
            {
                "ngrams": vectorizer.get_feature_names_out().tolist(),
                **({"idf": torch.from_numpy(vectorizer.idf_)} if options.tfidf else {}),
                "weight": torch.from_numpy(weight),
                "bias": torch.from_numpy(bias),
            }
        )


class RocchioNetwork(SVMNetwork):
    """Equation 14 on TF-IDF vectors, and a linear support vector machine."""

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; each memory's weight is its share of the expanded vector."""
        own, memories, shares = self.parts(batch)
        weight = self.fitted["memory_weight"]
        distance = self.distances(interpolate(own, memories, weight, shares.any(axis=1)))
        memory_weight = torch.from_numpy(weight * shares).to(batch.memory_score)
        return ClassificationOutput(distance.to(batch.target.device), memory_weight)

    def parts(self, batch: ClassificationBatch) -> tuple[Any, Any, Any]:
        """The texts' own vectors and the means of their memories', sparse [B, V]; 1 / K of each memory [B, K]."""
        from scipy.sparse import csr_matrix

        assert batch.text_string is not None
        own = self.vectorizer.transform(batch.text_string)
        mask = batch.memory_mask.cpu().numpy()
        shares = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        if not mask.any():
            return own, csr_matrix(own.shape), shares
        memories = self.vectorizer.transform(batch.memory_string)
        row, place = mask.nonzero()
        entries = (shares[mask], (row, batch.memory.cpu().numpy()[row, place]))
        return own, csr_matrix(entries, shape=(len(mask), memories.shape[0])) @ memories, shares


def interpolate(own: Any, memories: Any, weight: float, has_memory: Any) -> Any:
    """(1 - weight) times the text's vector plus weight times the mean of its memories; texts without any stay.

    Args:
        own: sparse [n, V].
        memories: sparse [n, V].
        weight: lambda of Equation 14.
        has_memory: bool [n].
    """
    from scipy.sparse import diags_array

    return diags_array(1 - weight * has_memory) @ own + weight * memories


class BOWRocchio(TfidfSVM):
    """TF-IDF vectors moved towards the mean of their memories' (Rocchio) with a linear support vector machine.

    It reads texts and memories themselves, whole, by scikit-learn's own rule for words. Its `probability` only orders
    classes.

    Example:
        >>> model = BOWRocchio(weight=0.4)
    """

    paper = (
        "Tang, Wang, Zheng, Mei: End-to-end Learning for Short Text Expansion (2017), after Rocchio (1971)"
    )

    def __init__(
        self, weight: float | None = None, max_ngram: int = 1, c: float = 1.0, **shared: Any
    ) -> None:
        """Configure vectors and classifier.

        Args:
            weight: lambda, the memories' share of a text's vector; None = the best on the validation rows.
            max_ngram: words of the longest n-gram.
            c: weight of training errors against a small weight vector.
            **shared: options of `Task`.
        """
        super().__init__(max_ngram=max_ngram, c=c, **shared)
        if weight is not None and not 0 <= weight <= 1:
            raise InputError(f"model.weight={weight}: must be in 0..1")

    @property
    @override
    def uses_memory(self) -> bool:
        return True

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return RocchioNetwork(self.options.max_ngram)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        from sklearn.svm import LinearSVC

        split, network = data.split("train"), self.network
        texts = list(split.rows.texts)
        if data.options.memory is not None:  # no training texts, so other words
            texts += split.neighbors.memories.texts
        vectorizer = new_vectorizer(self.options.max_ngram)
        fit_vectorizer(vectorizer, texts, split.rows.source)
        network.set_extra_state(
            {
                "ngrams": vectorizer.get_feature_names_out().tolist(),
                "idf": torch.from_numpy(vectorizer.idf_),
            }
        )
        own, memories, has_memory, labels = self._vectors(data, "train")
        best, weights = -1.0, WEIGHTS if self.options.weight is None else (self.options.weight,)
        held_out = self._vectors(data, "validation") if len(weights) > 1 else None
        for weight in weights:
            machine = LinearSVC(random_state=0, C=self.options.c)
            machine.fit(interpolate(own, memories, weight, has_memory), labels)
            right = 0.0
            if held_out is not None:
                vectors = interpolate(held_out[0], held_out[1], weight, held_out[2])
                right = float((machine.predict(vectors) == held_out[3]).mean())
            if right > best:
                best = right
                network.fitted |= {
                    "memory_weight": weight,
                    "weight": torch.from_numpy(machine.coef_),
                    "bias": torch.from_numpy(machine.intercept_),
                }

    def _vectors(self, data: TextDataModule[Any, Any], name: str) -> tuple[Any, Any, Any, Any]:
        """What Equation 14 needs of all rows of a split, by the code that makes it later; and the rows' classes."""
        from scipy.sparse import vstack

        split = data.split(name)
        dataset = data.dataset(split)
        blocks = [self.network.parts(dataset.__getitems__(block)) for block in blocks_of(len(split.rows))]
        own, memories, shares = zip(*blocks, strict=True)
        has_memory = np.concatenate([share.any(axis=1) for share in shares])
        labels = label_numbers(split.rows, data.spec.labels)
        return vstack(own, "csr"), vstack(memories, "csr"), has_memory, labels


def blocks_of(rows: int) -> Iterator[Sequence[int]]:
    """Row numbers, some at a time."""
    return (range(start, min(start + BLOCK, rows)) for start in range(0, rows, BLOCK))
