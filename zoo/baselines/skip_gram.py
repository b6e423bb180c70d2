"""Skip-gram with negative sampling, averaged over a text.

Tomas Mikolov, Ilya Sutskever, Kai Chen, Greg Corrado, Jeffrey Dean: "Distributed Representations of Words and Phrases
and their Compositionality", NIPS 2013; the vectors are gensim's.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.core.errors import check_installed
from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.word_averages import Corpus, WordAverages


class SkipGram(WordAverages):
    """Means of skip-gram vectors; `expand="join"` is Skip-gram_RF. It needs `pip install "memory-zoo[topics]"`."""

    @override
    def check_data(self, data: DataModule) -> None:
        super().check_data(data)
        check_installed("gensim", "topics", "SkipGram")

    @override
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        from gensim.models import Word2Vec

        words = [vocabulary.words[number] for number in corpus.words.tolist()]
        ends = corpus.offsets.tolist()
        # With one worker the same seed gives the same vectors.
        model = Word2Vec(
            [words[start:end] for start, end in pairwise(ends)],
            sg=1,
            vector_size=self.word_size,
            window=self.window,
            negative=self.negatives,
            epochs=self.epochs,
            min_count=1,
            workers=1,
            seed=seed,
        )
        vectors = np.zeros((len(vocabulary), self.word_size), np.float32)
        present = np.unique(corpus.words)
        vectors[present] = model.wv[[vocabulary.words[number] for number in present]]
        return vectors
