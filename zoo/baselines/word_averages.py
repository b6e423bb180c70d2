"""Word vectors that are learned first, the mean of a text's, and a linear support vector machine on it.

What the rows Skip-gram, LINE and PTE share of Jian Tang, Yue Wang, Kai Zheng, Qiaozhu Mei: "End-to-end Learning for
Short Text Expansion", KDD 2017 (Section 4.2.1). With memories (its rows with the index RF, after Rocchio), a text is
joined with them before the mean is taken, and the vectors are learned from them, too. What it says of bags of words
(Equation 14) can be had of these means as well: a share of the memories that the validation rows choose.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from datamodules.loaders import run_seed
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from zoo.baselines.bag_of_words import WEIGHTS, blocks_of
from zoo.tasks.base import check_choices, check_sizes
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask
from zoo.tasks.fitted import Fitted, FittedNetwork

Expand: TypeAlias = Literal["none", "join", "interpolate"]


class Corpus(NamedTuple):
    """Texts to learn word vectors from; words that the vocabulary lacks are left out."""

    #: int32 [all words]: vocabulary ids; the texts one after the other.
    words: NDArray[np.int32]
    #: int64 [n + 1]: text i is `words[offsets[i]:offsets[i + 1]]`.
    offsets: NDArray[np.int64]
    #: int64 [n]: classes; -1 for memories, whose labels are not read.
    labels: NDArray[np.int64]


class Means(NamedTuple):
    """Of the known words of texts and of their memories; 0 where there is none."""

    #: float32 [B, d].
    text: Tensor
    #: float32 [B, d]: over the words of all memories of a text.
    memories: Tensor
    #: float32 [B]: words of a text.
    text_words: Tensor
    #: float32 [B, K]: words of each memory.
    memory_words: Tensor


class AverageNetwork(FittedNetwork):
    """Means of word vectors, and the distances from the classes' planes."""

    def __init__(self, expand: Expand) -> None:
        super().__init__()
        self.expand = expand

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify; a memory's weight is its share of a text's vector."""
        means = self.means(batch)
        share = self.memory_share(means, self.fitted["memory_weight"])
        weight, bias = (self.fitted[name].to(share.device) for name in ("weight", "bias"))
        with torch.autocast(share.device.type, enabled=False):  # scores are float32 whatever the precision
            distance = mix(means, share) @ weight.T + bias
        if distance.shape[1] == 1:
            distance = torch.cat([-distance, distance], dim=1)
        words = means.memory_words
        shares = share.unsqueeze(1) * words / words.sum(dim=1, keepdim=True).clamp(min=1)
        return ClassificationOutput(distance, shares)

    def means(self, batch: ClassificationBatch) -> Means:
        """What the vectors of a batch's texts are made of."""
        word = batch.word.to("cpu")
        vectors = self.fitted["vectors"][word].to(batch.word.device)  # [U, d], 0 where not known
        known = self.fitted["known"][word].to(batch.word.device)
        text, text_words = _sums(batch.text, vectors, known)
        memories, memory_words = torch.zeros_like(text), torch.zeros_like(batch.memory_score)
        if self.expand != "none" and len(batch.memory_text):
            sums, words = _sums(batch.memory_text, vectors, known)
            memory_words = words[batch.memory] * batch.memory_mask
            memories = (sums[batch.memory] * batch.memory_mask.unsqueeze(2)).sum(dim=1)
        total = memory_words.sum(dim=1)
        return Means(
            text / text_words.clamp(min=1).unsqueeze(1),
            memories / total.clamp(min=1).unsqueeze(1),
            text_words,
            memory_words,
        )

    def memory_share(self, means: Means, weight: float) -> Tensor:
        """The memories' share of each text's vector [B]; with `join` that of their words, otherwise `weight`."""
        words = means.memory_words.sum(dim=1)
        joined = words / (words + means.text_words).clamp(min=1)
        if self.expand != "interpolate":
            return joined
        # Where one of the two has no word, the other is all there is.
        return torch.where((joined > 0) & (joined < 1), weight, joined)


def mix(means: Means, share: Tensor) -> Tensor:
    """Vectors [B, d] of texts, of which memories have a share [B]."""
    return torch.lerp(means.text, means.memories, share.unsqueeze(1))


def _sums(text: Tensor, vectors: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Sums [N, d] of the vectors of texts [N, T], and how many known words [N] they are of."""
    summed = functional.embedding_bag(text, vectors, mode="sum", padding_idx=0)
    return summed, (known[text] & (text != 0)).sum(dim=1).float()


class WordAverages(Fitted, ClassificationTask):
    """Base of the models: one says how the vectors are learned."""

    depends_on_seed = True
    without_memory = "--model.expand none"
    network: AverageNetwork

    def __init__(self, word_size: int = 100, expand: Expand = "none", c: float = 1.0, **shared: Any) -> None:
        """Configure vectors and classifier.

        Args:
            word_size: d, size of word vectors.
            expand: what is done with memories: `none`; `join`, the mean is over the words of the text and of its
                memories alike, as in the paper; `interpolate`, (1 - w) times the text's mean plus w times the
                memories', with the w that is best on the validation rows.
            c: weight of training errors against a small weight vector.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_choices(self.options, expand=("none", "join", "interpolate"))
        check_sizes(self.options, "word_size")
        if not c > 0:
            raise InputError(f"model.c={c}: must be more than 0")

    @abstractmethod
    def learn_vectors(self, corpus: Corpus, vocabulary: Vocabulary, seed: int) -> NDArray[np.float32]:
        """Word vectors [vocabulary, d]; what they are of words that the corpus lacks is not read."""

    @property
    @override
    def uses_memory(self) -> bool:
        return bool(self.options.expand != "none")

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
        corpus = read_corpus(data, labels, with_memories=self.uses_memory)
        if not len(corpus.words):
            raise InputError(f"{split.rows.source}: no text has a word of the vocabulary")
        vectors = self.learn_vectors(corpus, vocabulary, seed=run_seed())
        known = np.bincount(corpus.words, minlength=len(vocabulary)) > 0
        self.network.fitted = {
            "vectors": torch.from_numpy(vectors * known[:, None]),
            "known": torch.from_numpy(known),
        }
        means = self._means(data, "train")
        interpolates = self.options.expand == "interpolate"
        held_out = self._means(data, "validation") if interpolates else None
        best = -1.0
        for weight in WEIGHTS if interpolates else (0.0,):
            machine = LinearSVC(random_state=0, C=self.options.c, dual=False)
            machine.fit(self._vectors(means, weight), labels)
            right = 0.0
            if held_out is not None:
                truth = label_numbers(data.split("validation").rows, data.spec.labels)
                right = float((machine.predict(self._vectors(held_out, weight)) == truth).mean())
            if right > best:
                best = right
                self.network.fitted |= {
                    "memory_weight": weight,
                    "weight": torch.from_numpy(machine.coef_).float(),
                    "bias": torch.from_numpy(machine.intercept_).float(),
                }

    def _means(self, data: TextDataModule[Any, Any], name: str) -> Means:
        """The means of all rows of a split, by the code that makes them later, for texts to classify."""
        split = data.split(name)
        dataset = data.dataset(split)
        blocks = [self.network.means(dataset.__getitems__(block)) for block in blocks_of(len(split.rows))]
        return Means(*(torch.cat(field) for field in zip(*blocks, strict=True)))

    def _vectors(self, means: Means, weight: float) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = mix(means, self.network.memory_share(means, weight)).numpy()
        return vectors


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
