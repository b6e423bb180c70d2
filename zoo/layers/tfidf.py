"""Texts as sparse vectors of n-grams, and linear classifiers on them that are fitted to convergence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model._base import LinearClassifierMixin

#: With fewer training texts, n-grams of letters that occur in one text only are kept.
_FEW_ROWS = 100
#: Letters of the shortest n-gram of letters.
_MIN_LETTERS = 2
#: Added to the weight of each n-gram in each class, by naive Bayes.
_SMOOTHING = 0.3
#: Score of a class without texts: a support vector machine gives it to texts that are clearly of other classes, and the
#: scores of naive Bayes are positive.
_MISSING = -1.0

#: Weight [C, V] and bias [C].
Planes: TypeAlias = "tuple[NDArray[np.floating], NDArray[np.float64]]"
VectorsT = TypeVar("VectorsT", "csr_matrix", NDArray[np.float32])
#: Fits planes to vectors [n, V] and classes [n].
FitPlanes: TypeAlias = Callable[[VectorsT, NDArray[np.int64]], Planes]


def planes_of(classifier: LinearClassifierMixin, halve: bool = True) -> Planes:
    """Weight [C, V] and bias [C] of a classifier of scikit-learn, which has one plane for two classes.

    With `halve`, the softmax of the scores of two classes is the probability of logistic regression.
    """
    weight, bias = classifier.coef_, classifier.intercept_
    if len(bias) > 1:
        return weight, bias
    divisor = 2 if halve else 1
    return np.concatenate([-weight, weight]) / divisor, np.concatenate([-bias, bias]) / divisor


class TextVectorizer:
    """A vectorizer of scikit-learn that is kept as plain values: n-grams and inverse document frequencies."""

    def __init__(self, tfidf: bool = True, sublinear_tf: bool = False, **options: object) -> None:
        """Choose the n-grams by options of `CountVectorizer`; `tfidf`, with 1 + log tf or tf, weights their counts."""
        self.tfidf, self.sublinear_tf, self.options = tfidf, sublinear_tf, options
        self.state: PlainDict = {}
        self._opened: CountVectorizer | None = None

    def fit(self, texts: Iterable[str], source: str = "the training texts", **options: object) -> csr_matrix:
        """Select n-grams, and return the texts' vectors [n, V]; raises an `InputError` if there is no word."""
        from sklearn.feature_extraction.text import TfidfTransformer

        counter = self._counter(**options)
        try:
            counts = counter.fit_transform(texts)
        except ValueError as error:
            raise InputError(f"{source}: no words to learn from ({error})") from error
        counts.sort_indices()  # so that sums have the order of those of other texts
        idf = {"idf": torch.from_numpy(TfidfTransformer().fit(counts).idf_).float()} if self.tfidf else {}
        self.use({"ngrams": counter.get_feature_names_out().tolist(), **idf})
        return self._weighted(counts)

    def use(self, state: PlainDict) -> None:
        """Take a fitted state."""
        self.state, self._opened = state, None

    def transform(self, texts: Iterable[str]) -> csr_matrix:
        """The vectors of n texts [n, V]."""
        if self._opened is None:
            columns = {ngram: column for column, ngram in enumerate(self.state["ngrams"])}
            self._opened = self._counter(vocabulary=columns)
        return self._weighted(self._opened.transform(texts))

    def _counter(self, **options: object) -> CountVectorizer:
        from sklearn.feature_extraction.text import CountVectorizer

        return CountVectorizer(**self.options, **options)

    def _weighted(self, counts: csr_matrix) -> csr_matrix:
        from sklearn.feature_extraction.text import TfidfTransformer

        if not self.tfidf:
            return counts
        transformer = TfidfTransformer(sublinear_tf=self.sublinear_tf)
        transformer.idf_ = self.state["idf"].numpy()
        return transformer.transform(counts)


class NGramTfidf(nn.Module):
    """TF-IDF vectors of texts: words and n-grams of words, then n-grams of letters within words.

    Each of the two kinds has 1 + log tf, and the length 1. Vocabulary and frequencies are counted without labels.
    """

    def __init__(self, max_letters: int = 5) -> None:
        """Choose the n-grams: words, pairs of words, and 2 to `max_letters` letters (0 = none)."""
        super().__init__()
        self.vectorizers = {"words": TextVectorizer(sublinear_tf=True, ngram_range=(1, 2))}
        if max_letters:
            self.vectorizers["letters"] = TextVectorizer(
                sublinear_tf=True, analyzer="char_wb", ngram_range=(_MIN_LETTERS, max_letters)
            )

    def fit(self, texts: Sequence[str]) -> list[csr_matrix]:
        """Select the n-grams of n texts, and return the texts' vectors of each kind [n, V]."""
        min_df = {"words": 1, "letters": 2 if len(texts) >= _FEW_ROWS else 1}
        return [each.fit(texts, min_df=min_df[kind]) for kind, each in self.vectorizers.items()]

    def forward(self, texts: Sequence[str]) -> list[csr_matrix]:
        """The vectors of n texts of each kind [n, V]."""
        return [each.transform(texts) for each in self.vectorizers.values()]

    def get_extra_state(self) -> PlainDict:
        """The n-grams and their inverse document frequencies, for the state dict; empty before the fit."""
        return {kind: each.state for kind, each in self.vectorizers.items() if each.state}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the fitted values of a state dict."""
        for kind, vectorizer in self.vectorizers.items():
            vectorizer.use(state.get(kind, {}))


class SparseLinear(nn.Module):
    """A linear classifier of sparse vectors, from one of scikit-learn's. Before the fit, all scores are 0."""

    table: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.bias: Tensor | None = None
        # A buffer moves with the module; it is saved with the other fitted values.
        self.register_buffer("table", torch.zeros(0, num_classes), persistent=False)

    def fit(self, vectors: csr_matrix, target: NDArray[np.int64], fit: FitPlanes[csr_matrix]) -> None:
        """Fit to texts [n, V] with classes [n]; `fit` returns the planes of the classes that have texts, two or more.

        A class without texts has the lowest score for every text. With sets of labels [n, C], each label is fitted
        against all texts without it.
        """
        if target.ndim == 2:
            weight, bias = planes_by_label(fit, vectors.astype(np.float64), target)  # else for each label
        else:
            weight, bias = np.zeros((self.num_classes, vectors.shape[1])), np.full(self.num_classes, _MISSING)
            present = np.unique(target)
            weight[present], bias[present] = fit(vectors, target) if len(present) > 1 else (0.0, -_MISSING)
        table, biases = torch.from_numpy(weight.T.copy()).float(), torch.from_numpy(bias).float()
        self.set_extra_state({"table": table, "bias": biases})

    def forward(self, vectors: csr_matrix) -> Tensor:
        """float32 [B, C] from vectors [B, V]."""
        device = self.table.device
        if self.bias is None:
            return self.table.new_zeros(vectors.shape[0], self.num_classes)
        parts = vectors.indices, vectors.indptr[:-1]
        index, start = (torch.from_numpy(part.astype(np.int64)).to(device) for part in parts)
        weights = torch.from_numpy(vectors.data.astype(np.float32)).to(device)
        # The product with a sparse vector is a weighted sum of the table's rows.
        with torch.autocast(device.type, enabled=False):
            sums = functional.embedding_bag(index, self.table, start, mode="sum", per_sample_weights=weights)
            return sums + self.bias.to(device)

    def get_extra_state(self) -> PlainDict:
        """The fitted values, for the state dict: their sizes are unknown before the fit, so they are no buffers."""
        return {} if self.bias is None else {"table": self.table.cpu(), "bias": self.bias}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the fitted values of a state dict."""
        self.bias = state.get("bias")
        table = state["table"] if state else self.table.new_zeros(0, self.num_classes)
        self.table = table.to(self.table.device)


def planes_by_label(fit: FitPlanes[VectorsT], vectors: VectorsT, target: NDArray[np.int64]) -> Planes:
    """The planes of labels [n, C] of 0 and 1, each fitted by itself; a label of all texts, or of none, has no plane."""
    weight = np.zeros((target.shape[1], vectors.shape[1]), np.float32)  # thousands of labels take gigabytes
    bias = np.where(target.any(axis=0), -_MISSING, _MISSING)
    for label in np.flatnonzero(target.any(axis=0) & ~target.all(axis=0)):
        planes, biases = fit(vectors, target[:, label])
        weight[label], bias[label] = planes[1] - planes[0], biases[1] - biases[0]
    return weight, bias


def support_vectors(vectors: csr_matrix, target: NDArray[np.int64], c: float) -> Planes:
    """Fit one linear support vector machine per class, with squared hinge loss.

    `c` weights training errors against small weights.
    """
    from sklearn.svm import LinearSVC

    return planes_of(LinearSVC(C=c, random_state=0).fit(vectors, target))


def logistic_regression(vectors: csr_matrix, target: NDArray[np.int64], c: float) -> Planes:
    """Fit logistic regression for each class against the others; see `support_vectors`."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, solver="liblinear")
    classes = np.unique(target)
    if len(classes) == 2:
        return planes_of(model.fit(vectors, target))
    planes = [planes_of(model.fit(vectors, target == number)) for number in classes]
    return np.stack([weight[1] for weight, _ in planes]), np.stack([bias[1] for _, bias in planes])


def naive_bayes(vectors: csr_matrix, target: NDArray[np.int64], is_label: bool = False) -> Planes:
    """Fit complement naive Bayes (Rennie et al., "Tackling the Poor Assumptions of Naive Bayes", 2003).

    A label, 0 or 1 in `target`, is judged by the texts without it, too: beside all texts, which cancel among classes.
    """
    from sklearn.naive_bayes import ComplementNB

    model = ComplementNB(alpha=_SMOOTHING).fit(vectors, target)
    weight = model.feature_log_prob_
    if is_label:
        counts = model.feature_all_ + _SMOOTHING
        weight[0] = -np.log(counts / counts.sum())
    return weight, np.zeros(len(weight))
