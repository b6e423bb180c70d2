"""The mean of learned word vectors, and a linear support vector machine.

Base of the rows Skip-gram, LINE and PTE of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short
Text Expansion", KDD 2017 (Section 4.2.1). In its rows with the index RF (after Rocchio), a text is joined with its
memories before the mean, and the vectors are learned from both. `separate` is not in the paper.

Skip-gram with negative sampling: Tomas Mikolov, Ilya Sutskever, Kai Chen, Greg Corrado, Jeffrey Dean: "Distributed
Representations of Words and Phrases and their Compositionality", NIPS 2013; the vectors are gensim's.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch
from datamodules.classification import label_numbers
from datamodules.core.errors import InputError, check_installed
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.text_rows import TextRowsDataModule
from zoo.baselines.bag_of_words import BLOCK
from zoo.tasks.base import check_choice, check_positive, check_sizes
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.fitted import Fitted
from zoo.tasks.outputs import ClassificationOutput

Expand: TypeAlias = Literal["none", "join", "separate"]

#: Maximum distance of a word and those that it predicts.
WINDOW = 5
#: Words that are drawn for each predicted word.
NEGATIVES = 5


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


class WordAverages(Fitted[TextRowsDataModule[Any]], ClassificationTask):
    """Base of the models; each learns the vectors in its own way."""

    depends_on_seed = True
    without_memory = "--model.expand none"

    def __init__(
        self,
        word_size: int = 100,
        epochs: int = 20,
        expand: Expand = "none",
        c: float = 1.0,
        **shared: Any,
    ) -> None:
        """Configure vectors and classifier.

        Args:
            word_size: d, size of word vectors.
            epochs: passes over the texts.
            expand: use of memories: `none`; `join`, the mean over all words of text and memories (the paper's);
                `separate`, the means of the text and of its memories, each with classifier weights of its own.
            c: weight of training errors against small weights.
        """
        super().__init__(**shared)
        check_choice("expand", expand, ("none", "join", "separate"))
        check_sizes(word_size=word_size, epochs=epochs)
        check_positive(c=c)
        self.word_size, self.epochs, self.expand, self.c = word_size, epochs, expand, c
        self.uses_memory = expand != "none"

    @abstractmethod
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        """Word vectors [vocabulary, d]; those of words that the corpus lacks are not used."""

    @override
    def finish(self, data: TextRowsDataModule[Any]) -> None:
        from sklearn.svm import LinearSVC

        split, vocabulary = data.split("train"), data.words.vocabulary
        labels = label_numbers(split.rows, data.spec.labels)
        corpus = read_corpus(data, labels, with_memories=self.uses_memory)
        if not len(corpus.words):
            raise InputError(f"{split.rows.source}: no text has a word of the vocabulary")
        vectors = self.learn_vectors(corpus, vocabulary, seed=data.seed)
        known = np.bincount(corpus.words, minlength=len(vocabulary)) > 0
        self.fitted = {
            "vectors": torch.from_numpy(vectors * known[:, None]),
            "known": torch.from_numpy(known),
        }
        blocks = [self.vectors(batch)[0] for batch in data.dataset(split).batches(BLOCK)]
        machine = LinearSVC(random_state=0, C=self.c, dual=False).fit(torch.cat(blocks).numpy(), labels)
        self.fitted |= {
            # Rows one after the other, as in a file: a product rounds in the order of the memory.
            "weight": torch.from_numpy(np.ascontiguousarray(machine.coef_, np.float32)),
            "bias": torch.from_numpy(machine.intercept_).float(),
        }

    @override
    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; a memory's weight is its share of the words of the mean that it belongs to."""
        vectors, shares = self.vectors(batch)
        weight, bias = (self.fitted[name].to(vectors.device) for name in ("weight", "bias"))
        with torch.autocast(vectors.device.type, enabled=False):  # scores are float32 whatever the precision
            distance = vectors @ weight.T + bias
        if distance.shape[1] == 1:
            distance = torch.cat([-distance, distance], dim=1)
        return ClassificationOutput(distance, shares)

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
    def check_data(self, data: TextRowsDataModule[Any]) -> None:
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
            window=WINDOW,
            negative=NEGATIVES,
            epochs=self.epochs,
            min_count=1,
            workers=1,
            seed=seed,
        )
        vectors = np.zeros((len(vocabulary), self.word_size), np.float32)
        present = np.unique(corpus.words)
        vectors[present] = model.wv[[vocabulary.words[number] for number in present]]
        return vectors


def read_corpus(data: TextRowsDataModule[Any], labels: NDArray[np.int64], with_memories: bool) -> Corpus:
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
    sizes = np.diff(store.offsets)
    text = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(store.tokens)) - store.offsets[text]
    ids = vocabulary.lookup(store.lexicon)[store.tokens]
    kept = (position < length) & (ids != vocabulary.unk_id)
    return ids[kept], np.bincount(text[kept], minlength=len(sizes))
