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

from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.word_averages import Corpus, WordAverages
from zoo.tasks.base import check_sizes


class SkipGram(WordAverages):
    """Means of skip-gram vectors and a linear support vector machine; `expand="join"` is the paper's Skip-gram_RF.

    Example:
        >>> model = SkipGram(word_size=100, expand="join")
    """

    paper = "Mikolov et al.: Distributed Representations of Words and Phrases (2013)"

    def __init__(self, window: int = 5, negatives: int = 5, epochs: int = 20, **shared: Any) -> None:
        """Configure vectors and classifier.

        Args:
            window: words on either side that a word predicts at most.
            negatives: drawn words for each that is predicted.
            epochs: passes over the texts.
            **shared: options of `WordAverages` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "window", "negatives", "epochs")

    @override
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        from gensim.models import Word2Vec  # a second, that other models need not pay

        options = self.options
        words = [vocabulary.words[number] for number in corpus.words.tolist()]
        ends = corpus.offsets.tolist()
        texts = [words[start:end] for start, end in pairwise(ends)]
        # With one worker the same seed gives the same vectors.
        model = Word2Vec(
            texts,
            sg=1,
            vector_size=options.word_size,
            window=options.window,
            negative=options.negatives,
            epochs=options.epochs,
            min_count=1,
            workers=1,
            seed=seed,
        )
        vectors = np.zeros((len(vocabulary), options.word_size), np.float32)
        present = np.unique(corpus.words)
        vectors[present] = model.wv[[vocabulary.words[number] for number in present]]
        return vectors
