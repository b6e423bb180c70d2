"""Word vectors that are learned first, the mean of a text's, and a linear support vector machine on it.

What the rows Skip-gram, LINE and PTE share of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for
Short Text Expansion", KDD 2017 (Section 4.2.1). With memories (its rows with the index RF, after Rocchio), a text is
joined with them before the mean is taken, and the vectors are learned from them, too.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification.dataset import label_numbers
from datamodules.errors import InputError
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from zoo.tasks.base import check_sizes
from zoo.tasks.classification import ClassificationOutput, ClassificationTask
from zoo.tasks.fitted import Fitted, FittedNetwork

#: Training rows whose means are taken together.
BLOCK = 1024


class Corpus(NamedTuple):
    """Texts to learn word vectors from; words that the vocabulary lacks are left out."""

    #: int32 [all words]: vocabulary ids; the texts one after the other.
    words: NDArray[np.int32]
    #: int64 [n + 1]: text i is `words[offsets[i]:offsets[i + 1]]`.
    offsets: NDArray[np.int64]
    #: int64 [n]: classes; -1 for memories, whose labels are not read.
    labels: NDArray[np.int64]


class AverageNetwork(FittedNetwork):
    """Means of word vectors, and the distances from the classes' planes."""

    def __init__(self, expand: bool) -> None:
        super().__init__()
        self.expand = expand

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; a memory's weight is its share of the words that the mean is over."""
        mean, shares = self.means(batch)
        weight, bias = (self.fitted[name].to(mean.device) for name in ("weight", "bias"))
        with torch.autocast(mean.device.type, enabled=False):  # scores are float32 whatever the precision
            distance = mean @ weight.T + bias
        if distance.shape[1] == 1:
            distance = torch.cat([-distance, distance], dim=1)
        return ClassificationOutput(distance, shares)

    def means(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """The texts' vectors and what their memories count for in them.

        Returns:
            float32 [B, d], 0 for a text without a known word; and float32 [B, K].
        """
        word = batch.word.to("cpu")
        vectors = self.fitted["vectors"][word].to(batch.word.device)  # [U, d], 0 where not known
        known = self.fitted["known"][word].to(batch.word.device)
        total, count = _sums(batch.text, vectors, known)
        shares = torch.zeros_like(batch.memory_score)
        if self.expand and len(batch.memory_text):
            memory_total, memory_count = _sums(batch.memory_text, vectors, known)
            counts = memory_count[batch.memory] * batch.memory_mask  # [B, K]
            total = total + (memory_total[batch.memory] * batch.memory_mask.unsqueeze(2)).sum(dim=1)
            count = count + counts.sum(dim=1)
            shares = counts / count.clamp(min=1).unsqueeze(1)
        return total / count.clamp(min=1).unsqueeze(1), shares


def _sums(text: Tensor, vectors: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [N, d] of the vectors of texts [N, T], and how many known words [N] they are of."""
    summed = functional.embedding_bag(text, vectors, mode="sum", padding_idx=0)
    return summed, (known[text] & (text != 0)).sum(dim=1).float()


class WordAverages(Fitted, ClassificationTask):
    """Base of the models: one says how the vectors are learned."""

    depends_on_seed = True
    network: AverageNetwork

    def __init__(self, word_size: int = 100, expand: bool = False, c: float = 1.0, **shared: Any) -> None:
        """Configure vectors and classifier.

        Args:
            word_size: d, size of word vectors.
            expand: join a text with its memories.
            c: weight of training errors against a small weight vector.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "word_size")
        if not c > 0:
            raise InputError(f"model.c={c}: must be more than 0")

    @abstractmethod
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        """Word vectors [vocabulary, d]; what they are of words that the corpus lacks is not read."""

    @property
    @override
    def uses_memory(self) -> bool:
        return bool(self.options.expand)

    @override
    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        # Memories to expand by.
        super().check_data(data)
        if self.options.expand and not data.has_memory:
            raise InputError("model.expand joins texts with their memories: set --data.num_memories")

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> nn.Module:
        return AverageNetwork(self.options.expand)

    @override
    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        from sklearn.svm import LinearSVC  # a second, that other models need not pay

        split, vocabulary = data.split("train"), data.vocabulary
        labels = label_numbers(split.rows, data.spec.labels)
        corpus = read_corpus(data, labels, with_memories=self.options.expand)
        if not len(corpus.words):
            raise InputError(f"{split.rows.source}: no text has a word of the vocabulary")
        vectors = self.learn_vectors(corpus, vocabulary, seed=int(os.environ.get("PL_GLOBAL_SEED", 0)))
        known = np.bincount(corpus.words, minlength=len(vocabulary)) > 0
        self.network.fitted = {
            "vectors": torch.from_numpy(vectors * known[:, None]),
            "known": torch.from_numpy(known),
        }
        # The means are made by the code that makes them later, for texts to classify.
        dataset = data.dataset(split)
        blocks = (range(start, min(start + BLOCK, len(labels))) for start in range(0, len(labels), BLOCK))
        means = torch.cat([self.network.means(dataset.__getitems__(block))[0] for block in blocks])
        machine = LinearSVC(random_state=0, C=self.options.c, dual=False).fit(means.numpy(), labels)
        self.network.fitted |= {
            "weight": torch.from_numpy(machine.coef_).float(),
            "bias": torch.from_numpy(machine.intercept_).float(),
        }


def read_corpus(data: Any, labels: NDArray[np.int64], with_memories: bool) -> Corpus:
    """The training texts as a model reads them, and if wanted their memories.

    Args:
        data: prepared, with a split `train`.
        labels: classes of the training rows [n].
        with_memories: add the memories, too, unless these are the training texts.
    """
    split = data.split("train")
    length, memory_length = data.lengths
    parts = [_known_words(split.tokens, length, data.vocabulary)]
    if with_memories and data.options.memory is not None and split.memory_tokens is not None:
        parts.append(_known_words(split.memory_tokens, memory_length, data.vocabulary))
        labels = np.append(labels, np.full(len(split.memory_tokens), -1))
    counts = np.concatenate([counts for _, counts in parts])
    return Corpus(
        np.concatenate([words for words, _ in parts]), np.append(0, counts.cumsum()).astype(np.int64), labels
    )


def _known_words(
    store: TokenStore, length: int, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Vocabulary ids of all texts, cut to a length, without unknown words; and how many each text has."""
    sizes = np.diff(store.offsets)
    text = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(store.tokens)) - store.offsets[text]
    ids = vocabulary.lookup(store.lexicon)[store.tokens]
    kept = (place < length) & (ids != vocabulary.unk_id)
    return ids[kept], np.bincount(text[kept], minlength=len(sizes))
