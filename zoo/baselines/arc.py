"""Convolutional matching of sentences, with and without a meeting of the two before their encodings.

Baotian Hu, Zhengdong Lu, Hang Li, Qingcai Chen: "Convolutional Neural Network Architectures for Matching
Natural Language Sentences", NIPS 2014.

ARC-I encodes each text by convolutions and poolings and compares the two vectors by an MLP. ARC-II lets the
texts meet at once: every window of words of the first with every window of the second gives a vector, and
two-dimensional convolutions and poolings go on from there.

The paper pads texts to a fixed length and gates the convolution so that windows of padding give zero. Here
padding is never computed with; what the last layer pools into a fixed number of parts is the real area.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.baselines.convolution import (
    WordConvolution,
    inside,
    pool_grid,
    pool_neighbours,
    pool_segments,
    pool_squares,
)
from zoo.layers.encoders import WordEncoder
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import WordVectors
from zoo.tasks.matching.task import MatchingOutput, MatchingTask


class SentenceConvolution(nn.Module):
    """ARC-I's sentence model: convolutions with max pooling by 2 between them and into parts at the end."""

    def __init__(self, word_size: int, filters: tuple[int, ...], window: int, segments: int) -> None:
        super().__init__()
        self.first = WordConvolution(word_size, filters[0], window)
        # Padding on both sides by hand, below: `same` would put the extra place of an even window last, too.
        self.others = nn.ModuleList(
            nn.Conv1d(before, after, window) for before, after in itertools.pairwise(filters)
        )
        self.sides = ((window - 1) // 2, window // 2)
        self.segments = segments
        self.size = segments * filters[-1]

    def forward(self, vectors: Tensor, text: Tensor) -> Tensor:
        """Encode texts.

        Args:
            vectors: [U, D] vectors of the batch's distinct words, zero for padding (row 0).
            text: int64 [N, T].

        Returns:
            [N, size]; zero for a text without words.
        """
        lengths = (text != 0).sum(dim=1)
        states = torch.relu(self.first(vectors, text))  # [N, T, F]
        for convolution in self.others:
            # Pooling leaves zeros beyond the text, which is what a window at its edge reads.
            states, lengths = pool_neighbours(states, lengths)
            padded = nn.functional.pad(states.transpose(1, 2), self.sides)
            states = torch.relu(convolution(padded)).transpose(1, 2).contiguous()
        return pool_segments(states, lengths, self.segments).flatten(1)


class ARCINetwork(nn.Module):
    """Figure 3: two sentence models and an MLP."""

    def __init__(self, words: WordEncoder, options: Any, num_outputs: int, bias: bool) -> None:
        """Make the parts.

        Args:
            words: vectors of words.
            options: of `ARCI`.
            num_outputs: logits.
            bias: give the last layer a bias.
        """
        super().__init__()
        self.words = words
        towers = [
            SentenceConvolution(words.size, options.filters, options.window, options.segments)
            for _ in range(1 if options.share else 2)
        ]
        self.first, self.second = towers[0], towers[-1]
        self.dropout = nn.Dropout(options.dropout)
        self.hidden = nn.Linear(self.first.size + self.second.size, options.hidden_size)
        self.out = nn.Linear(options.hidden_size, num_outputs, bias=bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.dropout(self.words(batch.word, batch.char))  # [U, D]
        first = self.first(vectors, batch.first_text)  # [N, l]
        second = self.second(vectors, batch.second_text)  # [M, l]
        with torch.autocast(vectors.device.type, enabled=False):
            both = torch.cat(
                [first.float().index_select(0, batch.first), second.float().index_select(0, batch.second)],
                dim=1,
            )
            hidden = torch.relu(self.hidden(self.dropout(both)))
            return MatchingOutput(self.out(self.dropout(hidden)))


class ARCIINetwork(nn.Module):
    """Figure 4: windows of both texts meet, then two-dimensional convolutions and poolings, then an MLP."""

    def __init__(self, words: WordEncoder, options: Any, num_outputs: int, bias: bool) -> None:
        """Make the parts.

        Args:
            words: vectors of words.
            options: of `ARCII`.
            num_outputs: logits.
            bias: give the last layer a bias.
        """
        super().__init__()
        self.words = words
        filters, window, grid = options.filters, options.window, options.grid
        self.first = WordConvolution(words.size, filters[0], window)
        # One bias a filter is enough for the sum of the two.
        self.second = WordConvolution(words.size, filters[0], window, bias=False)
        self.others = nn.ModuleList(
            nn.Conv2d(before, after, window) for before, after in itertools.pairwise(filters)
        )
        self.sides = ((window - 1) // 2, window // 2) * 2
        self.grid = tuple(grid)
        self.dropout = nn.Dropout(options.dropout)
        self.hidden = nn.Linear(grid[0] * grid[1] * filters[-1], options.hidden_size)
        self.out = nn.Linear(options.hidden_size, num_outputs, bias=bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.dropout(self.words(batch.word, batch.char))  # [U, D]
        heights = (batch.first_text != 0).sum(dim=1)
        widths = (batch.second_text != 0).sum(dim=1)
        # The first layer is a ReLU of a sum of a term of the first and one of the second text, and it is
        # pooled by 2 x 2. The largest of the four sums is the sum of the larger terms: pooling each text
        # before they meet gives the same at a quarter of the cost.
        rows, heights = pool_neighbours(self.first(vectors, batch.first_text), heights)  # [N, T', F]
        columns, widths = pool_neighbours(self.second(vectors, batch.second_text), widths)  # [M, S', F]
        heights, widths = heights[batch.first], widths[batch.second]  # [P]
        image = torch.relu(
            rows.index_select(0, batch.first).unsqueeze(2)
            + columns.index_select(0, batch.second).unsqueeze(1)
        )  # [P, T', S', F]
        for number, convolution in enumerate(self.others):
            if number > 0:
                image, heights, widths = pool_squares(image, heights, widths)
            image = inside(image, heights, widths)
            padded = nn.functional.pad(image.permute(0, 3, 1, 2), self.sides)
            image = torch.relu(convolution(padded)).permute(0, 2, 3, 1).contiguous()
        with torch.autocast(vectors.device.type, enabled=False):
            pooled = pool_grid(image.float(), heights, widths, self.grid)
            hidden = torch.relu(self.hidden(self.dropout(pooled.flatten(1))))
            return MatchingOutput(self.out(self.dropout(hidden)))


class ARCI(WordVectors, MatchingTask):
    """The paper's ARC-I.

    Example:
        >>> model = ARCI(filters=(64, 64), window=3)
    """

    paper = "Hu, Lu, Li, Chen: Convolutional Neural Network Architectures for Matching Sentences (2014)"

    def __init__(
        self,
        filters: tuple[int, ...] = (64, 64),
        window: int = 3,
        segments: int = 1,
        hidden_size: int = 64,
        share: bool = False,
        dropout: float = 0.3,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            filters: of each convolution; there is max pooling by 2 between two of them.
            window: words, or places of the layer below, that a convolution reads; the paper's is 3.
            segments: parts that a text is pooled into at the end.
            hidden_size: units of the MLP's hidden layer.
            share: one sentence model for both texts.
            dropout: on word vectors and in the MLP.
            **shared: options of `WordVectors`, `MatchingTask` (the paper's loss is `hinge`) and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "filters", "window", "segments", "hidden_size")

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> ARCINetwork:
        words = self.make_words(spec, word_vectors)
        return ARCINetwork(words, self.options, spec.num_outputs, bias=self.sees_constants(spec))


class ARCII(WordVectors, MatchingTask):
    """The paper's ARC-II.

    Example:
        >>> model = ARCII(filters=(32, 32), grid=(3, 6))
    """

    paper = ARCI.paper

    def __init__(
        self,
        filters: tuple[int, ...] = (32, 32),
        window: int = 3,
        grid: tuple[int, int] = (3, 6),
        hidden_size: int = 64,
        dropout: float = 0.3,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            filters: of the layer where the texts meet and of each convolution over it; there is max pooling
                by 2 x 2 between two layers.
            window: words of each text that meet, and side of the convolutions; the paper's is 3.
            grid: parts of the first and of the second text that the last layer is pooled into.
            hidden_size: units of the MLP's hidden layer.
            dropout: on word vectors and in the MLP.
            **shared: options of `WordVectors`, `MatchingTask` (the paper's loss is `hinge`) and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "filters", "window", "grid", "hidden_size")

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> ARCIINetwork:
        words = self.make_words(spec, word_vectors)
        return ARCIINetwork(words, self.options, spec.num_outputs, bias=self.sees_constants(spec))
