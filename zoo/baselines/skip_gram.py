"""Skip-gram with negative sampling, averaged over a text.

Tomas Mikolov, Ilya Sutskever, Kai Chen, Greg Corrado, Jeffrey Dean: "Distributed Representations of Words and Phrases
and their Compositionality", NIPS 2013; the vectors are gensim's.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.base import AnyDataModule
from datamodules.core.errors import check_installed
from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.word_averages import Corpus, WordAverages
from zoo.tasks.base import check_sizes


class SkipGram(WordAverages):
    """Means of skip-gram vectors and a linear support vector machine; `expand="join"` is the paper's Skip-gram_RF.

    Training needs `pip install "memory-zoo[topics]"`.
    """

    def __init__(self, window: int = 5, negatives: int = 5, epochs: int = 20, **shared: Any) -> None:
        """Configure vectors and classifier.

        Args:
            window: maximum number of words on either side that a word predicts.
            negatives: words that are drawn for each predicted word.
            epochs: passes over the texts.
        """
        super().__init__(**shared)
        check_sizes(window=window, negatives=negatives, epochs=epochs)
        self.window, self.negatives, self.epochs = window, negatives, epochs

    @override
    def check_data(self, data: AnyDataModule) -> None:
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
