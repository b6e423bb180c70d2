"""Networks over the words of a text: convolution (TextCNN), recurrence (BiGRU), mean (FastText).

TextCNN: Yoon Kim: "Convolutional Neural Networks for Sentence Classification", EMNLP 2014. Windows read zeros beyond a
text; the paper pads texts to one length, and bounds the norm of the classifier's weights, which is omitted here.
BiGRU: the GRU of Kyunghyun Cho et al.: "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
Machine Translation", EMNLP 2014. Papers on short texts call a classifier on its last states "RNN".
FastText: Armand Joulin, Edouard Grave, Piotr Bojanowski, Tomas Mikolov: "Bag of Tricks for Efficient Text
Classification", EACL 2017. The softmax is not hierarchical; any optimizer works.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.lightning import OptimizerCallable
from datamodules.core.types import Count, Size
from zoo.baselines.convolution import WordConvolution
from zoo.layers.bags import TextBag
from zoo.layers.recurrent import AllStatesGRU
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.model import Given
from zoo.tasks.outputs import ClassificationOutput


class TextNetwork(nn.Module):
    """Encodes texts by vectors of size l, and classifies them by a linear layer with dropout."""

    def __init__(self, size: int, spec: ClassificationSpec, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = size
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(size, len(spec.labels))

    @abstractmethod
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The texts' vectors [B, l]."""

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes."""
        vectors = self.encode_texts(batch)
        # Scores are float32 in every precision.
        with torch.autocast(vectors.device.type, enabled=False):
            logits = self.classifier(self.dropout(vectors.float()))
        return ClassificationOutput(logits, torch.zeros_like(batch.memory_score), text_vector=vectors)


class TextOnly(ClassificationTask):
    """Base of the classifiers with a `TextNetwork`."""

    uses_memory = False
    network: TextNetwork

    @property
    @override
    def vector_size(self) -> int:
        return self.network.size

    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The texts' vectors [B, vector_size]."""
        return self.network.encode_texts(batch)


class CNNNetwork(TextNetwork):
    """Figure 1, with one channel: the largest value of each filter; zero for a text without words."""

    def __init__(self, given: Given[ClassificationSpec], options: TextCNN) -> None:
        windows, filters, words = options.windows, options.filters, options.make_words(given)
        super().__init__(len(windows) * filters, given.spec, options.dropout)
        self.words = words
        self.convolutions = nn.ModuleList(WordConvolution(words.size, filters, window) for window in windows)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        vectors = self.words(batch.word, batch.char)  # [U, D]
        is_word = (batch.text != 0).unsqueeze(2)
        pooled = []
        for convolution in self.convolutions:
            states = torch.relu(convolution(vectors, batch.text))  # the paper's Equation 2, [B, T, F]
            # No state is below 0, so zeroed padding is never larger.
            pooled.append((states * is_word).amax(dim=1))  # Equation 4
        return torch.cat(pooled, dim=1)


class TextCNN(ReadsWordVectors, TextOnly):
    """The paper's network: CNN-static with `--data.word_vectors`, CNN-non-static with `train_word_vectors` as well.

    Args:
        windows: words that a filter reads, for each group of filters.
        filters: in each group.
        dropout: on a text's vector.
    """

    network_type = CNNNetwork

    def __init__(
        self, windows: tuple[Size, ...] = (3, 4, 5), filters: Size = 100, dropout: float = 0.5, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.windows, self.filters, self.dropout = windows, filters, dropout


class GRUNetwork(TextNetwork):
    """The last states of a GRU in both directions; zero for a text without words."""

    def __init__(self, given: Given[ClassificationSpec], options: BiGRU) -> None:
        words = options.make_words(given)
        super().__init__(2 * options.hidden_size, given.spec, options.dropout)
        self.words = words
        self.word_dropout = nn.Dropout(options.dropout)
        self.gru = AllStatesGRU(words.size, options.hidden_size, bidirectional=True)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        vectors = self.word_dropout(self.words(batch.word, batch.char))  # [U, D]
        lengths = (batch.text != 0).sum(dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            states = self.gru(vectors.float(), batch.text, lengths)  # [B, T, 2, H]
        last = (lengths - 1).clamp(min=0)
        forward = states[torch.arange(len(last), device=last.device), last, 0]
        # The backward GRU ends at the first word.
        return torch.cat([forward, states[:, 0, 1]], dim=1)


class BiGRU(ReadsWordVectors, TextOnly):
    """A linear classifier on the last states of a bidirectional GRU.

    Args:
        hidden_size: state size of one direction.
        dropout: on word vectors and on a text's vector.
    """

    network_type = GRUNetwork

    def __init__(self, hidden_size: Size = 100, dropout: float = 0.5, **shared: Any) -> None:
        super().__init__(**shared)
        self.hidden_size, self.dropout = hidden_size, dropout


class FastTextNetwork(TextNetwork):
    """Figure 1: the mean of the vectors of words and pairs; zero for a text without words."""

    def __init__(self, given: Given[ClassificationSpec], options: FastText) -> None:
        words = options.make_words(given)
        super().__init__(words.size, given.spec)
        self.bag = TextBag(words, options.num_buckets)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        return self.bag(batch.word, batch.text)


class FastText(ReadsWordVectors, TextOnly):
    """The paper's classifier; with `num_buckets=0`, the one without bigrams.

    Args:
        num_buckets: rows of the table that pairs of words share by their hash; 0 = words alone.
        word_size: size of the vectors of words and pairs, where the data brings no vectors.
        optimizer: makes the optimizer. The paper's is SGD with a rate that falls to 0.
    """

    network_type = FastTextNetwork

    def __init__(
        self,
        num_buckets: Count = 100_000,
        word_size: Size = 100,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=5e-3, fused=True),
        **shared: Any,
    ) -> None:
        super().__init__(word_size=word_size, optimizer=optimizer, **shared)
        self.num_buckets = num_buckets
