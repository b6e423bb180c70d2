"""Convolution over words and maximum over time.

Yoon Kim: "Convolutional Neural Networks for Sentence Classification", EMNLP 2014. Equation numbers below are the
paper's.

Windows are centered on every word and read zeros beyond the text, so that a text shorter than a window has features,
too; the paper pads texts to one length. Its bound on the norm of the classifier's weights is omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.types import PlainDict
from zoo.baselines.convolution import WordConvolution
from zoo.baselines.text_only import TextNetwork, TextOnly
from zoo.layers.encoders import WordEncoder
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import ReadsWordVectors


class CNNNetwork(TextNetwork):
    """Figure 1, with one channel."""

    def __init__(
        self, words: WordEncoder, windows: Sequence[int], filters: int, dropout: float, num_classes: int
    ) -> None:
        super().__init__(len(windows) * filters, num_classes, dropout)
        self.words = words
        self.convolutions = nn.ModuleList(WordConvolution(words.size, filters, window) for window in windows)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The largest value of each filter in a text [B, l]; zero for a text without words."""
        vectors = self.words(batch.word, batch.char)  # [U, D]
        is_word = (batch.text != 0).unsqueeze(2)
        pooled = []
        for convolution in self.convolutions:
            states = torch.relu(convolution(vectors, batch.text))  # Equation 2, [B, T, F]
            # No state is below 0, so zeroed padding is never larger.
            pooled.append((states * is_word).amax(dim=1))  # Equation 4
        return torch.cat(pooled, dim=1)


class TextCNN(ReadsWordVectors, TextOnly):
    """The paper's network: CNN-static with `--data.word_vectors`, CNN-non-static with `train_word_vectors` as well."""

    def __init__(
        self,
        windows: tuple[int, ...] = (3, 4, 5),
        filters: int = 100,
        dropout: float = 0.5,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            windows: words that a filter reads, for each group of filters.
            filters: in each group.
            dropout: on a text's vector.
            **shared: options of `ReadsWordVectors` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(windows=windows, filters=filters, word_size=self.word_size)
        self.windows, self.filters, self.dropout = windows, filters, dropout

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> CNNNetwork:
        words = self.make_words(spec, word_vectors)
        return CNNNetwork(words, self.windows, self.filters, self.dropout, len(spec.labels))
