"""The mean of learned word vectors, and a linear support vector machine.

Base of the rows Skip-gram, LINE and PTE of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for Short
Text Expansion", KDD 2017 (Section 4.2.1). In its rows with the index RF (after Rocchio), a text is joined with its
memories before the mean, and the vectors are learned from both. `interpolate` applies Equation 14 to the means.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.base import AnyDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.dataset import run_seed
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.text_rows import TextRowsDataModule
from zoo.baselines.bag_of_words import BLOCK, WEIGHTS, Expanded, fit_weight
from zoo.tasks.base import check_choice, check_positive, check_sizes
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask
from zoo.tasks.fitted import Fitted, FittedNetwork

Expand: TypeAlias = Literal["none", "join", "interpolate"]


class Corpus(NamedTuple):
    """Texts to learn word vectors from, without words that the vocabulary lacks."""

    words: NDArray[np.int32]  #: [all words]: vocabulary ids; the texts one after the other.
    offsets: NDArray[np.int64]  #: [n + 1]: text i is `words[offsets[i]:offsets[i + 1]]`.
    labels: NDArray[np.int64]  #: [n]: classes; -1 for memories, whose labels are not read.


class Means(NamedTuple):
    """Mean vectors of the known words of texts and of their memories; 0 where there is none."""

    text: Tensor  #: float32 [B, d].
    memories: Tensor  #: float32 [B, d]: over the words of all memories of a text.
    text_words: Tensor  #: float32 [B]: number of words of a text.
    memory_words: Tensor  #: float32 [B, K]: number of words of each memory.

    def mix(self, share: Tensor) -> Tensor:
        """Vectors [B, d] of texts in which the memories have a share [B]."""
        return torch.lerp(self.text, self.memories, share.unsqueeze(1))


class AverageNetwork(FittedNetwork):
    """Means of word vectors, and distances from the classes' planes."""

    def __init__(self, expand: Expand) -> None:
        super().__init__()
        self.expand = expand

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; a memory's weight is its share of a text's vector."""
        means = self.means(batch)
        share = self.memory_share(means, self.fitted["memory_weight"])
        weight, bias = (self.fitted[name].to(share.device) for name in ("weight", "bias"))
        with torch.autocast(share.device.type, enabled=False):  # scores are float32 whatever the precision
            distance = means.mix(share) @ weight.T + bias
        if distance.shape[1] == 1:
            distance = torch.cat([-distance, distance], dim=1)
        words = means.memory_words
        shares = share.unsqueeze(1) * words / words.sum(dim=1, keepdim=True).clamp(min=1)
        return ClassificationOutput(distance, shares)

    def means(self, batch: ClassificationBatch) -> Means:
        """The means of the texts of a batch and of their memories."""
        word = batch.word.to("cpu")
        vectors = self.fitted["vectors"][word].to(batch.word.device)  # [U, d], 0 where not known
        is_known = self.fitted["known"][word].to(batch.word.device)
        text, text_words = _sums(batch.text, vectors, is_known)
        memories, memory_words = torch.zeros_like(text), torch.zeros_like(batch.memory_score)
        if self.expand != "none" and len(batch.memory_text):
            sums, words = _sums(batch.memory_text, vectors, is_known)
            memory_words = words[batch.memory] * batch.memory_mask
            memories = (sums[batch.memory] * batch.memory_mask.unsqueeze(2)).sum(dim=1)
        text = text / text_words.clamp(min=1).unsqueeze(1)
        memories = memories / memory_words.sum(dim=1).clamp(min=1).unsqueeze(1)
        return Means(text, memories, text_words, memory_words)

    def memory_share(self, means: Means, weight: float) -> Tensor:
        """The memories' share of each text's vector [B]: their share of the words, or `weight` to interpolate."""
        words = means.memory_words.sum(dim=1)
        joined = words / (words + means.text_words).clamp(min=1)
        if self.expand != "interpolate":
            return joined
        # Where one of the two has no word, the vector is the other's.
        return torch.where((joined > 0) & (joined < 1), weight, joined)


def _sums(text: Tensor, vectors: Tensor, is_known: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [N, d] of the vectors of texts [N, T], and their numbers of known words [N]."""
    summed = functional.embedding_bag(text, vectors, mode="sum", padding_idx=0)
    return summed, (is_known[text] & (text != 0)).sum(dim=1).float()


class WordAverages(Fitted, ClassificationTask):
    """Base of the models; each learns the vectors in its own way."""

    depends_on_seed = True
    without_memory = "--model.expand none"
    network: AverageNetwork

    def __init__(
        self,
        word_size: int = 100,
        window: int = 5,
        negatives: int = 5,
        epochs: int = 20,
        expand: Expand = "none",
        c: float = 1.0,
        **shared: Any,
    ) -> None:
        """Configure vectors and classifier.

        Args:
            word_size: d, size of word vectors.
            window: maximum distance of a word and those that it predicts.
            negatives: words that are drawn for each predicted word.
            epochs: passes over the texts.
            expand: use of memories: `none`; `join`, the mean is over all words of text and memories (the paper's);
                `interpolate`, (1 - w) text + w memories, with the w that is best on the validation rows.
            c: weight of training errors against small weights.
        """
        super().__init__(**shared)
        check_choice("expand", expand, ("none", "join", "interpolate"))
        check_sizes(word_size=word_size, window=window, negatives=negatives, epochs=epochs)
        check_positive(c=c)
        self.word_size, self.expand, self.c = word_size, expand, c
        self.window, self.negatives, self.epochs = window, negatives, epochs
        self.uses_memory = expand != "none"

    @abstractmethod
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        """Word vectors [vocabulary, d]; those of words that the corpus lacks are not used."""

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> AverageNetwork:
        return AverageNetwork(self.expand)

    @override
    def fit_to(self, data: AnyDataModule) -> None:
        from sklearn.svm import LinearSVC

        assert isinstance(data, TextRowsDataModule)
        split, vocabulary = data.split("train"), data.words.vocabulary
        labels = label_numbers(split.rows, data.spec.labels)
        corpus = read_corpus(data, labels, with_memories=self.uses_memory)
        if not len(corpus.words):
            raise InputError(f"{split.rows.source}: no text has a word of the vocabulary")
        vectors = self.learn_vectors(corpus, vocabulary, seed=run_seed())
        known = np.bincount(corpus.words, minlength=len(vocabulary)) > 0
        self.network.fitted = {
            "vectors": torch.from_numpy(vectors * known[:, None]),
            "known": torch.from_numpy(known),
        }
        interpolates = self.expand == "interpolate"
        weight, machine = fit_weight(
            lambda: LinearSVC(random_state=0, C=self.c, dual=False),
            WEIGHTS if interpolates else (0.0,),
            self._expanded(data, "train"),
            self._expanded(data, "validation") if interpolates else None,
        )
        self.network.fitted |= {
            "memory_weight": weight,
            "weight": torch.from_numpy(machine.coef_).float(),
            "bias": torch.from_numpy(machine.intercept_).float(),
        }

    def _expanded(self, data: AnyDataModule, name: str) -> Expanded:
        """The texts of a split, with means computed as for predictions."""
        split, network = data.split(name), self.network
        blocks = [network.means(batch) for batch in data.dataset(split).batches(BLOCK)]
        means = Means(*(torch.cat(field) for field in zip(*blocks, strict=True)))
        labels = label_numbers(split.rows, data.spec.labels)
        return Expanded(lambda weight: means.mix(network.memory_share(means, weight)).numpy(), labels)


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
