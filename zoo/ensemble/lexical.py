"""What the words of a text say: TF-IDF and a linear layer, fitted to convergence.

A sparse text is a bag of n-grams with their weights, so the linear layer is an embedding bag: the n-grams' rows of one
table, added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.core.errors import InputError
from zoo.ensemble.letters import LetterVectors
from zoo.training.fitted import planes_of

#: A table with fewer rows keeps n-grams of letters that only one text has.
_FEW_ROWS = 100
#: Letters of the shortest n-gram.
_LEAST_LETTERS = 2


class LexicalLinear(nn.Module):
    """A linear classifier of words, n-grams of words and n-grams of letters.

    Each kind of n-gram has a TF-IDF vector of its own, with 1 + log tf and of length 1; the classifier reads all of
    them side by side. Until it is fitted it says the same of every class.
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
        #: for each kind the n-grams in the table's order, and their inverse document frequencies; the bias.
        self.fitted: dict[str, Any] = {}
        # A buffer moves with the module; it is kept with the rest of what was fitted.
        self.register_buffer("table", torch.zeros(0, num_classes), persistent=False)
        self._vectorizers: list[Any] = []

    def fit(self, texts: Sequence[str], target: NDArray[np.int64], c: float) -> None:
        """Fit the classifier: one linear support vector machine a class (squared hinge loss).

        Args:
            texts: n training texts.
            target: [n], their classes 0..C-1; a class may be missing, which then loses everywhere.
            c: weight of training errors against small weights.

        Raises:
            InputError: no text has a word.
        """
        from scipy.sparse import hstack
        from sklearn.svm import LinearSVC  # a second, that other models need not pay

        parts, vectorizers = [], []
        for name in ("words", *(["letters"] if self.max_letters else [])):
            made = self._new_vectorizer(
                name, min_df=2 if name == "letters" and len(texts) >= _FEW_ROWS else 1
            )
            try:
                parts.append(made.fit_transform(texts))
            except ValueError as error:  # of texts without a word
                raise InputError(f"the lexical witness has nothing to read: {error}") from error
            vectorizers.append((name, made))
        weight, bias = (
            np.zeros((self.num_classes, sum(part.shape[1] for part in parts))),
            -np.ones(self.num_classes),
        )
        present = np.unique(target)
        if len(present) == 1:
            bias[present] = 1
        else:
            machine = LinearSVC(C=c, random_state=0).fit(hstack(parts).tocsr(), target)
            weight[present], bias[present] = planes_of(machine)
        self.set_extra_state(
            {
                **{name: made.get_feature_names_out().tolist() for name, made in vectorizers},
                **{f"{name}_idf": torch.from_numpy(made.idf_).float() for name, made in vectorizers},
                "table": torch.from_numpy(weight.T.copy()).float(),
                "bias": torch.from_numpy(bias).float(),
            }
        )

    def forward(self, texts: Sequence[str]) -> Tensor:
        """float32 [B, C]: distances from the classes' planes."""
        if not self.fitted:
            return self.table.new_zeros(len(texts), self.num_classes)
        from scipy.sparse import hstack

        vectors = hstack([made.transform(texts) for made in self._opened()]).tocsr()
        device = self.table.device
        index, start = (
            torch.from_numpy(part.astype(np.int64)) for part in (vectors.indices, vectors.indptr[:-1])
        )
        share = torch.from_numpy(vectors.data.astype(np.float32))
        with torch.autocast(device.type, enabled=False):
            found: Tensor = functional.embedding_bag(
                index.to(device),
                self.table,
                start.to(device),
                mode="sum",
                per_sample_weights=share.to(device),
            )
            bias: Tensor = self.fitted["bias"]
            return found + bias.to(device)

    def _new_vectorizer(self, name: str, vocabulary: dict[str, int] | None = None, min_df: int = 1) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        kind = (
            {"ngram_range": (1, self.max_ngram)}
            if name == "words"
            else {"analyzer": "char_wb", "ngram_range": (_LEAST_LETTERS, self.max_letters)}
        )
        return TfidfVectorizer(**kind, sublinear_tf=True, vocabulary=vocabulary, min_df=min_df)

    def _opened(self) -> list[Any]:
        """The vectorizers of what was fitted; made when they are first needed."""
        if not self._vectorizers:
            for name in ("words", "letters"):
                if name not in self.fitted:
                    continue
                ngrams = {ngram: i for i, ngram in enumerate(self.fitted[name])}
                idf = self.fitted[f"{name}_idf"].double().numpy()
                if name == "letters":
                    self._vectorizers.append(LetterVectors(ngrams, idf, (_LEAST_LETTERS, self.max_letters)))
                else:
                    made = self._new_vectorizer(name, ngrams)
                    made.idf_ = idf
                    self._vectorizers.append(made)
        return self._vectorizers

    def get_extra_state(self) -> dict[str, Any]:
        """For the state dict: its size is not known before the fit, so it is no buffer."""
        return {**self.fitted, "table": self.table.cpu()} if self.fitted else {}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """From the state dict."""
        self._vectorizers = []
        self.fitted = {name: value for name, value in state.items() if name != "table"}
        self.table = (
            state["table"].to(self.table.device) if state else self.table.new_zeros(0, self.num_classes)
        )
