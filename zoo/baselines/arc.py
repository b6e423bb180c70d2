"""Convolutional matching of sentences: encoded separately (ARC-I), or compared from the first layer on (ARC-II).

Baotian Hu, Zhengdong Lu, Hang Li, Qingcai Chen: "Convolutional Neural Network Architectures for Matching Natural
Language Sentences", NIPS 2014.

The paper pads texts to one length and gates windows of padding. Here padding is excluded, and the last layer pools the
real area into a fixed number of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.baselines.convolution import (
    WordConvolution,
    convolve,
    pool_grid,
    pool_neighbors,
    pool_segments,
    pool_squares,
    zero_outside,
)
from zoo.layers.encoders import WordEncoder
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput


class PerceptronMatching(ReadsWordVectors, MatchingTask):
    """Base of the models that score a pair by a perceptron with one hidden layer over its features."""

    def __init__(self, hidden_size: int = 64, dropout: float = 0.3, **shared: Any) -> None:
        """Choose the perceptron.

        Args:
            hidden_size: units of its hidden layer.
            dropout: before both layers, and on the word vectors of ARC-I and ARC-II.
            **shared: options of `ReadsWordVectors`, `MatchingTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(hidden_size=hidden_size)
        self.hidden_size, self.dropout = hidden_size, dropout

    def make_classifier(self, size: int, spec: MatchingSpec) -> nn.Sequential:
        """Make the perceptron, from features [P, size] to logits [P, num_outputs]."""
        hidden = nn.Linear(size, self.hidden_size)
        out = nn.Linear(self.hidden_size, spec.num_outputs, bias=self.has_bias(spec))
        return nn.Sequential(nn.Dropout(self.dropout), hidden, nn.ReLU(), nn.Dropout(self.dropout), out)


class SentenceConvolution(nn.Module):
    """ARC-I's sentence model: convolutions, max pooling by 2 between them and over the whole text at the end."""

    def __init__(self, word_size: int, filters: Sequence[int], window: int) -> None:
        super().__init__()
        self.first = WordConvolution(word_size, filters[0], window)
        self.others = nn.ModuleList(nn.Conv1d(*sizes, window) for sizes in pairwise(filters))
        self.size = filters[-1]

    def forward(self, vectors: Tensor, text: Tensor) -> Tensor:
        """Encode texts [N, T] of words [U, D]: [N, size], zero for a text without words."""
        lengths = (text != 0).sum(dim=1)
        states = torch.relu(self.first(vectors, text))  # [N, T, F]
        for convolution in self.others:
            states, lengths = pool_neighbors(states, lengths)  # zero beyond the text
            states = convolve(convolution, states)
        return pool_segments(states, lengths, 1).squeeze(1)


class ARCINetwork(nn.Module):
    """Figure 3: two sentence models and a multilayer perceptron."""

    def __init__(self, words: WordEncoder, spec: MatchingSpec, options: ARCI) -> None:
        super().__init__()
        self.words, self.dropout = words, nn.Dropout(options.dropout)
        self.first, self.second = (
            SentenceConvolution(words.size, options.filters, options.window) for _ in range(2)
        )
        self.classifier = options.make_classifier(2 * self.first.size, spec)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.dropout(self.words(batch.word, batch.char))  # [U, D]
        first = self.first(vectors, batch.first_text)  # [N, l]
        second = self.second(vectors, batch.second_text)  # [M, l]
        with torch.autocast(vectors.device.type, enabled=False):
            first = first.float().index_select(0, batch.first)
            second = second.float().index_select(0, batch.second)
            return MatchingOutput(self.classifier(torch.cat([first, second], dim=1)))


class ARCIINetwork(nn.Module):
    """Figure 4: windows of both texts together, two-dimensional convolutions and poolings, a multilayer perceptron."""

    def __init__(self, words: WordEncoder, spec: MatchingSpec, options: ARCII) -> None:
        super().__init__()
        filters, window, self.grid = options.filters, options.window, options.grid
        self.words, self.dropout = words, nn.Dropout(options.dropout)
        self.first = WordConvolution(words.size, filters[0], window)
        # The sum of the two needs one bias only.
        self.second = WordConvolution(words.size, filters[0], window, bias=False)
        self.others = nn.ModuleList(nn.Conv2d(*sizes, window) for sizes in pairwise(filters))
        self.classifier = options.make_classifier(self.grid[0] * self.grid[1] * filters[-1], spec)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.dropout(self.words(batch.word, batch.char))  # [U, D]
        heights = (batch.first_text != 0).sum(dim=1)
        widths = (batch.second_text != 0).sum(dim=1)
        # The first layer is the ReLU of a sum of one term for each text, pooled by 2 x 2. The largest of four sums is
        # the sum of the larger terms: pooling each text before the sum gives the same at a quarter of the cost.
        rows, heights = pool_neighbors(self.first(vectors, batch.first_text), heights)  # [N, T', F]
        columns, widths = pool_neighbors(self.second(vectors, batch.second_text), widths)  # [M, S', F]
        heights, widths = heights[batch.first], widths[batch.second]  # [P]
        rows, columns = rows.index_select(0, batch.first), columns.index_select(0, batch.second)
        image = torch.relu(rows.unsqueeze(2) + columns.unsqueeze(1))  # [P, T', S', F]
        for number, convolution in enumerate(self.others):
            if number > 0:
                image, heights, widths = pool_squares(image, heights, widths)
            image = convolve(convolution, zero_outside(image, heights, widths))
        with torch.autocast(vectors.device.type, enabled=False):
            pooled = pool_grid(image.float(), heights, widths, self.grid)
            return MatchingOutput(self.classifier(pooled.flatten(1)))


class ARCI(PerceptronMatching):
    """The paper's ARC-I; its loss is `hinge`."""

    def __init__(self, filters: tuple[int, ...] = (64, 64), window: int = 3, **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            filters: of each convolution, with max pooling by 2 between two of them.
            window: words, or positions of the layer below, that a convolution reads; the paper's is 3.
        """
        super().__init__(**shared)
        check_sizes(filters=filters, window=window)
        self.filters, self.window = filters, window

    @override
    def build_network(self, given: Given[MatchingSpec]) -> ARCINetwork:
        return ARCINetwork(self.make_words(given), given.spec, self)


class ARCII(PerceptronMatching):
    """The paper's ARC-II; its loss is `hinge`."""

    def __init__(
        self,
        filters: tuple[int, ...] = (32, 32),
        window: int = 3,
        grid: tuple[int, int] = (3, 6),
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            filters: of the layer that combines the texts and of each convolution over it; 2 x 2 max pooling between.
            window: words of each text that are combined, and side of the convolutions; the paper's is 3.
            grid: parts of the first and of the second text that the last layer is pooled into.
        """
        super().__init__(**shared)
        check_sizes(filters=filters, window=window, grid=grid)
        self.filters, self.window, self.grid = filters, window, grid

    @override
    def build_network(self, given: Given[MatchingSpec]) -> ARCIINetwork:
        return ARCIINetwork(self.make_words(given), given.spec, self)
