"""TF-IDF of letters, as scikit-learn computes it, several times as fast: an n-gram of letters stays within a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Words whose n-grams are remembered; texts to predict may bring new ones for ever.
_WORDS = 1 << 16


class LetterVectors:
    """Makes vectors of texts: those of a fitted `TfidfVectorizer(analyzer="char_wb", sublinear_tf=True)`.

    A word's n-grams are cut and looked up once. What a text has of them is then a product of two sparse matrices: its
    words, and the words' n-grams.
    """

    def __init__(self, ngrams: Mapping[str, int], idf: NDArray[np.float64], sizes: tuple[int, int]) -> None:
        """Take what was fitted.

        Args:
            ngrams: n-gram -> its column.
            idf: [V], inverse document frequencies.
            sizes: letters of the shortest and of the longest n-gram.
        """
        from sklearn.feature_extraction.text import TfidfTransformer

        self._ngrams, self._sizes = ngrams, sizes
        self._weigh = TfidfTransformer(sublinear_tf=True)
        self._weigh.idf_ = idf
        self._known: dict[str, NDArray[np.int64]] = {}

    def transform(self, texts: Sequence[str]) -> Any:
        """Sparse vectors [n, V], of length 1 or 0."""
        from scipy.sparse import csr_matrix

        words: dict[str, int] = {}
        numbers, starts = [], [0]
        for text in texts:
            numbers += [words.setdefault(word, len(words)) for word in text.lower().split()]
            starts.append(len(numbers))
        in_texts = csr_matrix((np.ones(len(numbers)), numbers, starts), shape=(len(texts), len(words)))
        found = [self._columns(word) for word in words]
        columns = np.concatenate([np.zeros(0, np.int64), *found])
        ends = np.cumsum([0, *map(len, found)])
        in_words = csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(words), len(self._ngrams)))
        counts = in_texts @ in_words
        return self._weigh.transform(counts, copy=False) if len(texts) else counts

    def _columns(self, word: str) -> NDArray[np.int64]:
        """The columns of a word's n-grams, each as often as it occurs."""
        if (known := self._known.get(word)) is not None:
            return known
        if len(self._known) >= _WORDS:
            self._known.clear()
        spelled, (least, most) = f" {word} ", self._sizes
        # A word that is no longer than the shortest n-gram is one by itself.
        most = max(least, min(most, len(spelled)))
        cut = [
            spelled[start : start + size]
            for size in range(least, most + 1)
            for start in range(max(1, len(spelled) - size + 1))
        ]
        columns = np.array([self._ngrams[one] for one in cut if one in self._ngrams], np.int64)
        self._known[word] = columns
        return columns
