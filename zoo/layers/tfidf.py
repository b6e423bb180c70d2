"""TF-IDF and a linear layer, fitted to convergence.

A sparse text is a bag of weighted n-grams, so the linear layer is an embedding bag: a weighted sum of the n-grams' rows
of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

#: A table with fewer rows keeps n-grams of letters that occur in one text only.
_FEW_ROWS = 100
#: Letters of the shortest n-gram of letters.
_MIN_LETTERS = 2


class LinearClassifier(Protocol):
    """A fitted linear classifier of scikit-learn."""

    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]


def planes_of(classifier: LinearClassifier) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weight [C, V] and bias [C] of a linear classifier of scikit-learn, which has one plane for two classes."""
    weight, bias = classifier.coef_, classifier.intercept_
    if len(bias) > 1:
        return weight, bias
    # Halves: the softmax of both scores is then the probability of logistic regression.
    return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2


class TfidfLinear(nn.Module):
    """A linear classifier of words, n-grams of words and n-grams of letters.

    Each kind of n-gram has a TF-IDF vector of its own, with 1 + log tf and of length 1; the classifier reads their
    concatenation. Before the fit all classes have equal scores.
    """

    table: Tensor

    def __init__(self, max_ngram: int, max_letters: int, num_classes: int) -> None:
        """Choose the n-grams.

        Args:
            max_ngram: words of the longest n-gram of words.
            max_letters: letters of the longest n-gram of letters, which begin at 2 and stay within words; 0 = none.
            num_classes: C.
        """
        super().__init__()
        self.max_ngram, self.max_letters, self.num_classes = max_ngram, max_letters, num_classes
        #: kind -> its n-grams in the table's order, and their inverse document frequencies; the bias.
        self.fitted: PlainDict = {}
        # A buffer moves with the module; it is saved with the other fitted values.
        self.register_buffer("table", torch.zeros(0, num_classes), persistent=False)
        self._vectorizers: list[TfidfVectorizer] = []

    def fit(self, texts: Sequence[str], target: NDArray[np.int64], c: float) -> None:
        """Fit the classifier: one linear support vector machine per class (squared hinge loss).

        Args:
            texts: n training texts.
            target: [n], their classes 0..C-1; a missing class loses everywhere.
            c: weight of training errors against small weights.

        Raises:
            InputError: no text has a word.
        """
        from scipy.sparse import hstack
        from sklearn.svm import LinearSVC

        parts, vectorizers = [], {}
        for kind in ("words", *(["letters"] if self.max_letters else [])):
            min_df = 2 if kind == "letters" and len(texts) >= _FEW_ROWS else 1
            vectorizers[kind] = vectorizer = self._new_vectorizer(kind, min_df=min_df)
            try:
                parts.append(vectorizer.fit_transform(texts))
            except ValueError as error:
                raise InputError(f"the training texts have no words to learn from: {error}") from error
        weight = np.zeros((self.num_classes, sum(part.shape[1] for part in parts)))
        bias = -np.ones(self.num_classes)
        present = np.unique(target)
        if len(present) == 1:
            bias[present] = 1
        else:
            classifier = LinearSVC(C=c, random_state=0).fit(hstack(parts).tocsr(), target)
            weight[present], bias[present] = planes_of(classifier)
        ngrams = {kind: each.get_feature_names_out().tolist() for kind, each in vectorizers.items()}
        idf = {f"{kind}_idf": torch.from_numpy(each.idf_).float() for kind, each in vectorizers.items()}
        table, bias_ = torch.from_numpy(weight.T.copy()).float(), torch.from_numpy(bias).float()
        self.set_extra_state({**ngrams, **idf, "table": table, "bias": bias_})

    def forward(self, texts: Sequence[str]) -> Tensor:
        """float32 [B, C]: distances from the classes' planes."""
        if not self.fitted:
            return self.table.new_zeros(len(texts), self.num_classes)
        from scipy.sparse import hstack

        vectors = hstack([vectorizer.transform(texts) for vectorizer in self._opened()]).tocsr()
        device = self.table.device
        index, start = (
            torch.from_numpy(part.astype(np.int64)) for part in (vectors.indices, vectors.indptr[:-1])
        )
        share = torch.from_numpy(vectors.data.astype(np.float32))
        with torch.autocast(device.type, enabled=False):
            sums = functional.embedding_bag(
                index.to(device),
                self.table,
                start.to(device),
                mode="sum",
                per_sample_weights=share.to(device),
            )
            scores: Tensor = sums + self.fitted["bias"].to(device)
            return scores

    def _new_vectorizer(
        self, kind: str, vocabulary: dict[str, int] | None = None, min_df: int = 1
    ) -> TfidfVectorizer:
        from sklearn.feature_extraction.text import TfidfVectorizer

        ngrams = (
            {"ngram_range": (1, self.max_ngram)}
            if kind == "words"
            else {"analyzer": "char_wb", "ngram_range": (_MIN_LETTERS, self.max_letters)}
        )
        return TfidfVectorizer(**ngrams, sublinear_tf=True, vocabulary=vocabulary, min_df=min_df)

    def _opened(self) -> list[TfidfVectorizer]:
        """The fitted vectorizers, made at the first use."""
        if not self._vectorizers:
            for kind in ("words", "letters"):
                if kind in self.fitted:
                    columns = {ngram: column for column, ngram in enumerate(self.fitted[kind])}
                    vectorizer = self._new_vectorizer(kind, columns)
                    vectorizer.idf_ = self.fitted[f"{kind}_idf"].double().numpy()
                    self._vectorizers.append(vectorizer)
        return self._vectorizers

    def get_extra_state(self) -> PlainDict:
        """The fitted values, for the state dict: their sizes are unknown before the fit, so they are no buffers."""
        return {**self.fitted, "table": self.table.cpu()} if self.fitted else {}

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the fitted values of a state dict."""
        self._vectorizers = []
        self.fitted = {name: value for name, value in state.items() if name != "table"}
        table = state["table"] if state else self.table.new_zeros(0, self.num_classes)
        self.table = table.to(self.table.device)
