"""Word vectors from networks of words, texts and labels, learned by sampling edges, and averaged over a text.

LINE: Jian Tang, Meng Qu, Mingzhe Wang, Ming Zhang, Jun Yan, Qiaozhu Mei: "LINE: Large-scale Information Network
Embedding", WWW 2015. PTE: Jian Tang, Meng Qu, Qiaozhu Mei: "PTE: Predictive Text Embedding through Large-scale
Heterogeneous Text Networks", KDD 2015.

Three networks share the words: word-word (within a window, weighted by frequency), word-text and word-label. An edge
predicts the word from its other end, p(word | other) = softmax(u_word . v_other) (PTE, Equation 1), with negative
sampling (LINE, Equation 7). LINE reads the first two networks; PTE reads all three together (PTE, Algorithm 1).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core.compiled import njit
from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.word_averages import NEGATIVES, WINDOW, Corpus, WordAverages

#: Entries of the table that negative words are drawn from.
NOISE_ENTRIES = 1 << 20
#: Power of a word's degree in the distribution of negative words.
NOISE_POWER = 0.75
#: Of the first step; it falls linearly to 0. LINE's 0.025 is for far more edges: on Dblp's titles, it needs 120 epochs
#: for what 0.05 learns in 30.
LEARNING_RATE = 0.05


class LINE(WordAverages):
    """Vectors from the networks of words and of texts; `expand="join"` is the paper's LINE_RF."""

    reads_labels: ClassVar[bool] = False

    def __init__(self, epochs: int = 30, **shared: Any) -> None:
        """Configure vectors and classifier.

        Args:
            epochs: edges drawn from each network, as a multiple of the words of all texts.
        """
        super().__init__(epochs=epochs, **shared)

    @override
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        num_words, num_texts = len(vocabulary), len(corpus.labels)
        num_labels = int(corpus.labels.max()) + 1 if self.reads_labels else 0
        # Rows: words, words as contexts (LINE, Section 4.1.2), texts, labels.
        starts = np.array([num_words, 2 * num_words, 2 * num_words + num_texts if num_labels else -1])
        vectors = np.zeros((2 * num_words + num_texts + num_labels, self.word_size), np.float32)
        random = np.random.default_rng(seed)
        vectors[:num_words] = (random.random((num_words, self.word_size)) - 0.5) / self.word_size
        sample_edges(
            vectors,
            corpus.words,
            np.repeat(np.arange(num_texts), np.diff(corpus.offsets)),
            corpus.offsets,
            corpus.labels,
            starts,
            noise_tables(corpus, num_words, WINDOW),
            WINDOW,
            NEGATIVES,
            self.epochs * len(corpus.words),
            LEARNING_RATE,
            int(random.integers(1, 1 << 62)),
        )
        return vectors[:num_words]


class PTE(LINE):
    """LINE's networks and that of labels; `expand="join"` is the paper's PTE_RF."""

    reads_labels = True


def noise_tables(corpus: Corpus, num_words: int, window: int) -> NDArray[np.int32]:
    """Negative words in each network, as frequent as their degree requires: int32 [3, NOISE_ENTRIES]."""
    sizes = np.diff(corpus.offsets)
    before = np.arange(len(corpus.words)) - np.repeat(corpus.offsets[:-1], sizes)
    after = np.repeat(sizes, sizes) - 1 - before
    pairs = np.minimum(before, window) + np.minimum(after, window)
    labelled = np.repeat(corpus.labels >= 0, sizes)
    tables = np.zeros((3, NOISE_ENTRIES), np.int32)
    for table, degree in zip(tables, (pairs, np.ones_like(pairs), labelled), strict=True):
        share = np.bincount(corpus.words, weights=degree, minlength=num_words) ** NOISE_POWER
        if share.any():
            entries = (np.arange(NOISE_ENTRIES) + 0.5) / NOISE_ENTRIES
            table[:] = np.searchsorted(share.cumsum() / share.sum(), entries)
    return tables


@njit()
def _next(state):  # type: ignore[no-untyped-def]  # xorshift: a random number, and the next state
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@njit()
def draw_edge(network, state, words, text_of, offsets, labels, window):  # type: ignore[no-untyped-def]
    """Draw an edge: a word, its other end (a word, a text or a label; -1 = none), and the new state."""
    # An edge of weight w occurs at w positions, or pairs of positions in the network of words.
    state = _next(state)
    position = np.int64((state >> np.uint64(20)) % np.uint64(len(words)))
    text = text_of[position]
    if network == 1:
        return words[position], text, state
    if network == 2:
        return words[position], labels[text], state
    state = _next(state)
    step = np.int64((state >> np.uint64(20)) % np.uint64(2 * window)) - window
    other = position + (step if step < 0 else step + 1)
    if other < offsets[text] or other >= offsets[text + 1]:
        return words[position], np.int64(-1), state
    return words[position], np.int64(words[other]), state


@njit(fastmath=True)
def _approach(word, other, target, rate, step):  # type: ignore[no-untyped-def]
    """A step of sigmoid(word . other) towards `target`: moves `word`, and adds the move of `other` to `step`."""
    product = np.float32(0)
    for i in range(len(word)):
        product += word[i] * other[i]
    gradient = np.float32(rate * (target - 1 / (1 + np.exp(-product))))
    for i in range(len(word)):
        step[i] += gradient * word[i]
        word[i] += gradient * other[i]


@njit()
def sample_edges(  # type: ignore[no-untyped-def]
    vectors, words, text_of, offsets, labels, starts, noise, window, negatives, draws, rate, seed
):
    """Learn vectors [rows, d] in place by drawing alternately from each network; words come first.

    `text_of` [all words] is each word's text, `starts` [3] the first row of the other ends in each network (-1 = none).
    """
    state = np.uint64(seed)
    step = np.zeros(vectors.shape[1], np.float32)
    for draw in range(draws):
        step_rate = rate * max(1 - draw / draws, 1e-4)
        for network in range(len(starts)):
            if starts[network] < 0:
                continue
            word, end, state = draw_edge(network, state, words, text_of, offsets, labels, window)
            if end < 0:
                continue
            other = vectors[starts[network] + end]
            step[:] = 0
            _approach(vectors[word], other, 1.0, step_rate, step)
            for _ in range(negatives):
                state = _next(state)
                negative = noise[network, np.int64((state >> np.uint64(20)) % np.uint64(noise.shape[1]))]
                if negative != word:
                    _approach(vectors[negative], other, 0.0, step_rate, step)
            for i in range(len(step)):
                other[i] += step[i]
