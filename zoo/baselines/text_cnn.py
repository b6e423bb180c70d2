"""Convolution over words and maximum over time.

Yoon Kim: "Convolutional Neural Networks for Sentence Classification", EMNLP 2014. Equation numbers below are the
paper's.

Windows are centred on every word and read zeros beyond the text, so that a text shorter than a window has features,
too; the paper pads texts to one length. Its bound on the norm of the classifier's weights is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from zoo.baselines.convolution import WordConvolution
from zoo.baselines.text_only import TextNetwork, TextOnly
from zoo.layers.encoders import WordEncoder
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import WordVectors


class CNNNetwork(TextNetwork):
    """Figure 1, with one channel."""

    def __init__(self, words: WordEncoder, options: Any, num_classes: int) -> None:
        """Make the parts.

        Args:
            words: vectors of words.
            options: of `TextCNN`.
            num_classes: C.
        """
        windows, filters = options.windows, options.filters
        super().__init__(len(windows) * filters, num_classes, options.dropout)
        self.words = words
        self.convolutions = nn.ModuleList(WordConvolution(words.size, filters, window) for window in windows)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The largest value of each filter in a text [B, l]; zero for a text without words."""
        vectors = self.words(batch.word, batch.char)  # [U, D]
        real = (batch.text != 0).unsqueeze(2)
        pooled = []
        for convolution in self.convolutions:
            states = torch.relu(convolution(vectors, batch.text))  # Equation 2, [B, T, F]
            # No state is below 0, so none at padding is the largest.
            pooled.append((states * real).amax(dim=1))  # Equation 4
        return torch.cat(pooled, dim=1)


class TextCNN(WordVectors, TextOnly):
    """The paper's network: `--data.word_vectors` makes it CNN-static, `train_word_vectors` CNN-non-static.

    Example:
        >>> model = TextCNN(windows=(3, 4, 5), filters=100)
    """

    paper = "Kim: Convolutional Neural Networks for Sentence Classification (2014)"

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
            **shared: options of `WordVectors` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "windows", "filters", "word_size")

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> CNNNetwork:
        return CNNNetwork(self.make_words(spec, word_vectors), self.options, len(spec.labels))
