"""The mean of learned word vectors, and a linear support vector machine.

Base of the rows Skip-gram, LINE and PTE of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short
Text Expansion", KDD 2017 (Section 4.2.1). In its rows with the index RF (after Rocchio), a text is joined with its
memories before the mean, and the vectors are learned from both. `separate` is not in the paper.

Skip-gram with negative sampling: Tomas Mikolov, Ilya Sutskever, Kai Chen, Greg Corrado, Jeffrey Dean: "Distributed
Representations of Words and Phrases and their Compositionality", NIPS 2013; the vectors are gensim's.

LINE: Jian Tang, Meng Qu, Mingzhe Wang, Ming Zhang, Jun Yan, Qiaozhu Mei: "LINE: Large-scale Information Network
Embedding", WWW 2015. PTE: Jian Tang, Meng Qu, Qiaozhu Mei: "PTE: Predictive Text Embedding through Large-scale
Heterogeneous Text Networks", KDD 2015. Three networks share the words: word-word (within a window, weighted by
frequency), word-text and word-label. An edge predicts the word from its other end, p(word | other) =
softmax(u_word . v_other) (PTE, Equation 1), with negative sampling (LINE, Equation 7). LINE reads the first two
networks; PTE reads all three together (PTE, Algorithm 1).
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch
from datamodules.classification import ClassificationDataModule, label_numbers
from datamodules.core.compiled import njit
from datamodules.core.errors import InputError, check_installed
from datamodules.core.ragged import consecutive
from datamodules.core.types import Size
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.bag_of_words import BLOCK
from zoo.layers.tfidf import planes_of
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.fitted import Fitted
from zoo.tasks.outputs import ClassificationOutput

Expand: TypeAlias = Literal["none", "join", "separate"]

#: Maximum distance of a word and those that it predicts.
WINDOW = 5
#: Words that are drawn for each predicted word.
NEGATIVES = 5
#: Entries of the table that negative words are drawn from.
NOISE_ENTRIES = 1 << 20
#: Power of a word's degree in the distribution of negative words.
NOISE_POWER = 0.75
#: Of the first step; it falls linearly to 0. LINE's 0.025 is for far more edges: on Dblp's titles, it needs 120 epochs
#: for what 0.05 learns in 30.
LEARNING_RATE = 0.05


class Corpus(NamedTuple):
    """Texts to learn word vectors from, without words that the vocabulary lacks."""

    words: NDArray[np.int32]  #: [all words]: vocabulary ids; the texts one after the other.
    offsets: NDArray[np.int64]  #: [n + 1]: text i is `words[offsets[i]:offsets[i + 1]]`.
    labels: NDArray[np.int64]  #: [n]: classes; -1 for memories, whose labels are not read.


def _per_word(sums: Tensor, words: Tensor) -> Tensor:
    """Sums [B, n] divided by numbers of words [B]."""
    return sums / words.clamp(min=1).unsqueeze(1)


def _sums(text: Tensor, vectors: Tensor, is_known: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [N, d] of the vectors of texts [N, T], and their numbers of known words [N]."""
    summed = functional.embedding_bag(text, vectors, mode="sum", padding_idx=0)
    return summed, (is_known[text] & (text != 0)).sum(dim=1).float()


class WordAverages(Fitted[ClassificationDataModule], ClassificationTask):
    """Base of the models; each learns the vectors in its own way.

    Args:
        word_size: d, size of word vectors.
        epochs: passes over the texts; of LINE and PTE, edges drawn from each network, as a multiple of the words of
            all texts. None: 20, of LINE and PTE 30.
        expand: use of memories: `none`; `join`, the mean over all words of text and memories (the paper's);
            `separate`, the means of the text and of its memories, each with classifier weights of its own.
    """

    depends_on_seed = True
    without_memory = "--model.expand none"
    default_epochs: ClassVar[int] = 20

    def __init__(
        self, word_size: Size = 100, epochs: Size | None = None, expand: Expand = "none", **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.word_size, self.epochs, self.expand = word_size, epochs or self.default_epochs, expand
        self.uses_memory = expand != "none"

    @abstractmethod
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        """Word vectors [vocabulary, d]; those of words that the corpus lacks are not used."""

    @override
    def finish(self, data: ClassificationDataModule) -> None:
        from sklearn.svm import LinearSVC

        split, vocabulary = data.split("train"), data.words.vocabulary
        labels = label_numbers(split.rows, data.spec.labels)
        corpus = read_corpus(data, labels, with_memories=self.uses_memory)
        if not len(corpus.words):
            raise InputError(f"{split.rows.source}: no text has a word of the vocabulary")
        vectors = self.learn_vectors(corpus, vocabulary, seed=data.seed)
        known = np.bincount(corpus.words, minlength=len(vocabulary)) > 0
        vectors = vectors * known[:, None]
        self.fitted = {"vectors": torch.from_numpy(vectors), "known": torch.from_numpy(known)}
        blocks = [self.vectors(batch)[0] for batch in data.dataset(split).batches(BLOCK)]
        machine = LinearSVC(random_state=0, dual=False).fit(torch.cat(blocks).numpy(), labels)
        # Rows one after the other, as in a file: a product rounds in the order of the memory.
        weight, bias = (np.ascontiguousarray(part, np.float32) for part in planes_of(machine, halve=False))
        self.fitted |= {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; a memory's weight is its share of the words of the mean that it belongs to."""
        vectors, shares = self.vectors(batch)
        weight, bias = (self.fitted[name].to(vectors.device) for name in ("weight", "bias"))
        with torch.autocast(vectors.device.type, enabled=False):  # scores are float32 whatever the precision
            return ClassificationOutput(vectors @ weight.T + bias, shares)

    def vectors(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """Vectors of texts, float32 [B, d], or [B, 2 d] with `separate`; and the memories' shares, float32 [B, K].

        A mean without known words is 0.
        """
        word = batch.word.to("cpu")
        vectors = self.fitted["vectors"][word].to(batch.word.device)  # [U, d], 0 where not known
        is_known = self.fitted["known"][word].to(batch.word.device)
        text, text_words = _sums(batch.text, vectors, is_known)  # [B, d], [B]
        memories, words = torch.zeros_like(text), torch.zeros_like(batch.memory_score)  # [B, d], [B, K]
        if self.expand != "none" and len(batch.memory_text):
            sums, counts = _sums(batch.memory_text, vectors, is_known)
            words = counts[batch.memory] * batch.memory_mask
            memories = (sums[batch.memory] * batch.memory_mask.unsqueeze(2)).sum(dim=1)
        memory_words = words.sum(dim=1)
        if self.expand == "separate":
            means = [_per_word(text, text_words), _per_word(memories, memory_words)]
            return torch.cat(means, dim=1), _per_word(words, memory_words)
        all_words = text_words + memory_words
        return _per_word(text + memories, all_words), _per_word(words, all_words)


class SkipGram(WordAverages):
    """Means of skip-gram vectors; `expand="join"` is Skip-gram_RF. It needs the extra `topics` (gensim)."""

    @override
    def check_data(self, data: ClassificationDataModule) -> None:
        super().check_data(data)
        check_installed("gensim", "topics", "SkipGram")

    @override
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        from gensim.models import Word2Vec

        words = [vocabulary.words[number] for number in corpus.words.tolist()]
        texts = [words[start:end] for start, end in pairwise(corpus.offsets.tolist())]
        # With one worker the same seed gives the same vectors.
        options = {"vector_size": self.word_size, "epochs": self.epochs, "seed": seed}
        model = Word2Vec(texts, sg=1, min_count=1, workers=1, window=WINDOW, negative=NEGATIVES, **options)
        vectors = np.zeros((len(vocabulary), self.word_size), np.float32)
        present = np.unique(corpus.words)
        vectors[present] = model.wv[[vocabulary.words[number] for number in present]]
        return vectors


class LINE(WordAverages):
    """Vectors from the networks of words and of texts; `expand="join"` is the paper's LINE_RF."""

    reads_labels: ClassVar[bool] = False
    default_epochs = 30

    @override
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        num_words, num_texts = len(vocabulary), len(corpus.labels)
        num_labels = int(corpus.labels.max()) + 1 if self.reads_labels else 0
        # Rows: words, words as contexts (LINE, Section 4.1.2), texts, labels.
        starts = np.array([num_words, 2 * num_words, 2 * num_words + num_texts if num_labels else -1])
        vectors = np.zeros((2 * num_words + num_texts + num_labels, self.word_size), np.float32)
        random = np.random.default_rng(seed)
        vectors[:num_words] = (random.random((num_words, self.word_size)) - 0.5) / self.word_size
        text_of = np.repeat(np.arange(num_texts), np.diff(corpus.offsets))
        noise = noise_tables(corpus, num_words, WINDOW)
        draws, seed = self.epochs * len(corpus.words), int(random.integers(1, 1 << 62))
        sample_edges(vectors, *corpus, text_of, starts, noise, WINDOW, NEGATIVES, draws, LEARNING_RATE, seed)
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
    vectors, words, offsets, labels, text_of, starts, noise, window, negatives, draws, rate, seed
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


def read_corpus(data: ClassificationDataModule, labels: NDArray[np.int64], with_memories: bool) -> Corpus:
    """Training texts with their classes [n], cut as a model reads them; optionally with other texts of the memory."""
    split, vocabulary = data.split("train"), data.words.vocabulary
    length, memory_length = data.lengths
    parts = [_known_words(split.tokens, length, vocabulary)]
    if with_memories and data.options.memory is not None and split.memory_tokens is not None:
        parts.append(_known_words(split.memory_tokens, memory_length, vocabulary))
        labels = np.append(labels, np.full(len(split.memory_tokens), -1))
    counts = np.concatenate([counts for _, counts in parts])
    offsets = np.append(0, counts.cumsum()).astype(np.int64)
    return Corpus(np.concatenate([words for words, _ in parts]), offsets, labels)


def _known_words(
    store: TokenStore, length: int, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Vocabulary ids of all texts, cut to a length, without unknown words; and the number of each text's words."""
    kept = consecutive(store.offsets[:-1], np.minimum(np.diff(store.offsets), length))
    ids = vocabulary.lookup(store.lexicon)[store.tokens[kept.values]]
    is_known = ids != vocabulary.unk_id
    return ids[is_known], np.bincount(kept.list_numbers[is_known], minlength=len(kept))
