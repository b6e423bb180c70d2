"""Texts as sparse vectors of n-grams, and a linear classifier on them that is fitted to convergence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

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

#: With fewer training texts, n-grams of letters that occur in one text only are kept.
_FEW_ROWS = 100
#: Letters of the shortest n-gram of letters.
_MIN_LETTERS = 2


class LinearClassifier(Protocol):
    """A fitted linear classifier of scikit-learn."""

    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]


def planes_of(
    classifier: LinearClassifier, halve: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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

    def __init__(self, tfidf: bool = True, **options: object) -> None:
        """Choose the n-grams by options of `TfidfVectorizer`, or of `CountVectorizer` without `tfidf`."""
        self.tfidf, self.options = tfidf, options
        self.state: PlainDict = {}
        self._opened: CountVectorizer | None = None

    def fit(self, texts: Iterable[str], source: str = "the training texts", **options: object) -> csr_matrix:
        """Select n-grams, and return the texts' vectors [n, V]; raises an `InputError` if there is no word."""
        vectorizer = self._new(**options)
        try:
            vectors = vectorizer.fit_transform(texts)
        except ValueError as error:
            raise InputError(f"{source}: no words to learn from ({error})") from error
        idf = {"idf": torch.from_numpy(vectorizer.idf_)} if self.tfidf else {}
        self.use({"ngrams": vectorizer.get_feature_names_out().tolist(), **idf})
        return vectors

    def use(self, state: PlainDict) -> None:
        """Take a fitted state."""
        self.state, self._opened = state, None

    def transform(self, texts: Iterable[str]) -> csr_matrix:
        """The vectors of n texts [n, V]."""
        if self._opened is None:
            columns = {ngram: column for column, ngram in enumerate(self.state["ngrams"])}
            self._opened = self._new(vocabulary=columns)
            if self.tfidf:
                self._opened.idf_ = self.state["idf"].double().numpy()
        return self._opened.transform(texts)

    def _new(self, **options: object) -> CountVectorizer:
        from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

        return (TfidfVectorizer if self.tfidf else CountVectorizer)(**self.options, **options)


class TfidfLinear(nn.Module):
    """A linear classifier of words, n-grams of words and n-grams of letters.

    It reads a TF-IDF vector of each kind of n-gram, with 1 + log tf and of length 1. Before the fit, all scores are 0.
    """

    table: Tensor

    def __init__(self, max_ngram: int, max_letters: int, num_classes: int) -> None:
        """Choose the n-grams: up to `max_ngram` words, and 2 to `max_letters` letters within words (0 = none)."""
        super().__init__()
        self.num_classes = num_classes
        self.vectorizers = {"words": TextVectorizer(sublinear_tf=True, ngram_range=(1, max_ngram))}
        if max_letters:
            self.vectorizers["letters"] = TextVectorizer(
                sublinear_tf=True, analyzer="char_wb", ngram_range=(_MIN_LETTERS, max_letters)
            )
        self.bias: Tensor | None = None
        # A buffer moves with the module; it is saved with the other fitted values.
        self.register_buffer("table", torch.zeros(0, num_classes), persistent=False)

    def fit(self, texts: Sequence[str], target: NDArray[np.int64], c: float) -> None:
        """Fit one linear support vector machine per class (squared hinge loss) to texts with classes [n].

        A missing class has the lowest score for every text. `c` weights training errors against small weights.
        """
        from scipy.sparse import hstack
        from sklearn.svm import LinearSVC

        min_df = {"words": 1, "letters": 2 if len(texts) >= _FEW_ROWS else 1}
        vectors = hstack(
            [vectorizer.fit(texts, min_df=min_df[kind]) for kind, vectorizer in self.vectorizers.items()]
        ).tocsr()
        weight, bias = np.zeros((self.num_classes, vectors.shape[1])), -np.ones(self.num_classes)
        present = np.unique(target)
        if len(present) == 1:
            bias[present] = 1
        else:
            classifier = LinearSVC(C=c, random_state=0).fit(vectors, target)
            weight[present], bias[present] = planes_of(classifier)
        states = {kind: vectorizer.state for kind, vectorizer in self.vectorizers.items()}
        vectorizers = {kind: {**state, "idf": state["idf"].float()} for kind, state in states.items()}
        table, bias_ = torch.from_numpy(weight.T.copy()).float(), torch.from_numpy(bias).float()
        self.set_extra_state({**vectorizers, "table": table, "bias": bias_})

    def forward(self, texts: Sequence[str]) -> Tensor:
        """float32 [B, C]: distances from the classes' planes."""
        if self.bias is None:
            return self.table.new_zeros(len(texts), self.num_classes)
        from scipy.sparse import hstack

        parts = [vectorizer.transform(texts) for vectorizer in self.vectorizers.values()]
        vectors, device = hstack(parts).tocsr(), self.table.device
        index, start = (
            torch.from_numpy(part.astype(np.int64)).to(device)
            for part in (vectors.indices, vectors.indptr[:-1])
        )
        weights = torch.from_numpy(vectors.data.astype(np.float32)).to(device)
        # The product with a sparse vector is a weighted sum of the table's rows.
        with torch.autocast(device.type, enabled=False):
            sums = functional.embedding_bag(index, self.table, start, mode="sum", per_sample_weights=weights)
            return sums + self.bias.to(device)

    def get_extra_state(self) -> PlainDict:
        """The fitted values, for the state dict: their sizes are unknown before the fit, so they are no buffers."""
        if self.bias is None:
            return {}
        states = {kind: vectorizer.state for kind, vectorizer in self.vectorizers.items()}
        return {**states, "table": self.table.cpu(), "bias": self.bias}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the fitted values of a state dict."""
        for kind, vectorizer in self.vectorizers.items():
            vectorizer.use(state.get(kind, {}))
        self.bias = state.get("bias")
        table = state["table"] if state else self.table.new_zeros(0, self.num_classes)
        self.table = table.to(self.table.device)
