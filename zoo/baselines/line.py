"""Word vectors from networks of words, texts and labels, by sampling edges, averaged over a text.

LINE: Jian Tang, Meng Qu, Mingzhe Wang, Ming Zhang, Jun Yan, Qiaozhu Mei: "LINE: Large-scale Information Network
Embedding", WWW 2015. PTE: Jian Tang, Meng Qu, Qiaozhu Mei: "PTE: Predictive Text Embedding through Large-scale
Heterogeneous Text Networks", KDD 2015.

Three networks share the words: word and word (of one window; the weight is how often), word and text, word and label.
An edge says: predict the word from what is at the other end, p(word | other) = softmax(u_word . v_other) (PTE,
Equation 1), with negative sampling (LINE, Equation 7). LINE reads the first two networks, as the short-text expansion
paper does; PTE all three, trained together (PTE, Algorithm 1).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.word_averages import Corpus, WordAverages
from zoo.tasks.base import check_choices, check_sizes

Order: TypeAlias = Literal["first", "second"]

#: Entries of the table that negative words are drawn from.
NOISE_ENTRIES = 1 << 20
#: What a word's degree counts for when negative words are drawn.
NOISE_POWER = 0.75


class LINE(WordAverages):
    """Vectors from the networks of words and words and of words and texts; `expand="join"` is the paper's LINE_RF.

    Example:
        >>> model = LINE(order="second", expand="join")
    """

    paper = "Tang et al.: LINE: Large-scale Information Network Embedding (2015)"
    reads_labels = False

    def __init__(
        self,
        order: Order = "second",
        window: int = 5,
        negatives: int = 5,
        epochs: int = 30,
        learning_rate: float = 0.025,
        **shared: Any,
    ) -> None:
        """Configure vectors and classifier.

        Args:
            order: what two words of an edge share: `first`, their own vectors are close (LINE, Section 4.1.1);
                `second`, a word predicts the other by a vector that it has as a context (Section 4.1.2).
            window: words on either side that a word has an edge with.
            negatives: drawn words for each edge.
            epochs: edges drawn from each network, as a multiple of the words of all texts.
            learning_rate: of the first step; it falls to 0 in a straight line.
            **shared: options of `WordAverages` and `Task`.
        """
        super().__init__(**shared)
        check_choices(self.options, order=("first", "second"))
        check_sizes(self.options, "window", "negatives", "epochs")

    @override
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        options = self.options
        num_words, num_texts = len(vocabulary), len(corpus.labels)
        num_labels = int(corpus.labels.max()) + 1 if self.reads_labels else 0
        # Rows: words, words as contexts, texts, labels. With the first order, a context is the word itself.
        starts = np.array([num_words, 2 * num_words, 2 * num_words + num_texts if num_labels else -1])
        if options.order == "first":
            starts[0] = 0
        vectors = np.zeros((2 * num_words + num_texts + num_labels, options.word_size), np.float32)
        random = np.random.default_rng(seed)
        vectors[:num_words] = (random.random((num_words, options.word_size)) - 0.5) / options.word_size
        sample_edges(
            vectors,
            corpus.words,
            np.repeat(np.arange(num_texts), np.diff(corpus.offsets)),
            corpus.offsets,
            corpus.labels,
            starts,
            noise_tables(corpus, num_words, options.window),
            options.window,
            options.negatives,
            options.epochs * len(corpus.words),
            options.learning_rate,
            int(random.integers(1, 1 << 62)),
        )
        return vectors[:num_words]


class PTE(LINE):
    """LINE's networks and that of words and labels; `expand="join"` is the paper's PTE_RF.

    Example:
        >>> model = PTE(expand="join")
    """

    paper = "Tang, Qu, Mei: PTE: Predictive Text Embedding (2015)"
    reads_labels = True


def noise_tables(corpus: Corpus, num_words: int, window: int) -> NDArray[np.int32]:
    """Words as often as they are to be drawn as negatives, by their degree in each network.

    Returns:
        int32 [3, NOISE_ENTRIES]: of words with words, texts, and labels.
    """
    sizes = np.diff(corpus.offsets)
    place = np.arange(len(corpus.words)) - np.repeat(corpus.offsets[:-1], sizes)
    behind = np.repeat(sizes, sizes) - 1 - place
    pairs = np.minimum(place, window) + np.minimum(behind, window)
    labelled = np.repeat(corpus.labels >= 0, sizes)
    tables = np.zeros((3, NOISE_ENTRIES), np.int32)
    for table, degree in zip(tables, (pairs, np.ones_like(pairs), labelled), strict=True):
        share = np.bincount(corpus.words, weights=degree, minlength=num_words) ** NOISE_POWER
        if share.any():
            entries = (np.arange(NOISE_ENTRIES) + 0.5) / NOISE_ENTRIES
            table[:] = np.searchsorted(share.cumsum() / share.sum(), entries)
    return tables


@njit(cache=True, nogil=True)
def _next(state):  # type: ignore[no-untyped-def]  # a drawn number and what the next is made of: xorshift
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@njit(cache=True, nogil=True)
def draw_edge(  # type: ignore[no-untyped-def]
    network, state, words, text_of, offsets, labels, window
):
    """Draw an edge of a network, each as often as its weight says.

    An edge of weight w is w pairs of places, or w places: a place is drawn, and where the network is of words and
    words, a second place in its window.

    Returns:
        The word, what is at the other end (a word, a text, a label; -1 = nothing, which is no draw), the new state.
    """
    state = _next(state)
    place = np.int64((state >> np.uint64(20)) % np.uint64(len(words)))
    text = text_of[place]
    if network == 1:
        return words[place], text, state
    if network == 2:
        return words[place], labels[text], state
    state = _next(state)
    step = np.int64((state >> np.uint64(20)) % np.uint64(2 * window)) - window
    other = place + (step if step < 0 else step + 1)
    if other < offsets[text] or other >= offsets[text + 1]:
        return words[place], np.int64(-1), state
    return words[place], np.int64(words[other]), state


@njit(cache=True, nogil=True, fastmath=True)
def _approach(one, other, target, rate, moved):  # type: ignore[no-untyped-def]
    """A step by which u . v says `target` rather: `one` is moved, what `other` is to be moved by is added up."""
    product = np.float32(0)
    for i in range(len(one)):
        product += one[i] * other[i]
    gradient = np.float32(rate * (target - 1 / (1 + np.exp(-product))))
    for i in range(len(one)):
        moved[i] += gradient * one[i]
        one[i] += gradient * other[i]


@njit(cache=True, nogil=True)
def sample_edges(  # type: ignore[no-untyped-def]
    vectors, words, text_of, offsets, labels, starts, noise, window, negatives, draws, rate, seed
):
    """Learn the vectors: in turn an edge of each network, and words that are not at its end.

    Args:
        vectors: float32 [rows, d], changed in place; the words' are the first.
        words: int32 [all words], see `Corpus`.
        text_of: int64 [all words], the text that a word is in.
        offsets: int64 [n + 1].
        labels: int64 [n], -1 = none.
        starts: int64 [3], the first row of what the words of each network have edges with; -1 = no such network.
        noise: int32 [3, entries], see `noise_tables`.
        window: words on either side.
        negatives: for each edge.
        draws: from each network.
        rate: of the first step.
        seed: above 0.
    """
    state = np.uint64(seed)
    moved = np.zeros(vectors.shape[1], np.float32)
    for draw in range(draws):
        step = rate * max(1 - draw / draws, 1e-4)
        for network in range(len(starts)):
            if starts[network] < 0:
                continue
            word, end, state = draw_edge(network, state, words, text_of, offsets, labels, window)
            if end < 0:
                continue
            other = vectors[starts[network] + end]
            moved[:] = 0
            _approach(vectors[word], other, 1.0, step, moved)
            for _ in range(negatives):
                state = _next(state)
                negative = noise[network, np.int64((state >> np.uint64(20)) % np.uint64(noise.shape[1]))]
                if negative != word:
                    _approach(vectors[negative], other, 0.0, step, moved)
            for i in range(len(moved)):
                other[i] += moved[i]
