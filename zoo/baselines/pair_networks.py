"""Networks for pairs of short texts: convolution of each text (ARC-I), or of an image of both; and weights by value.

ARC-I, ARC-II: Baotian Hu, Zhengdong Lu, Hang Li, Qingcai Chen: "Convolutional Neural Network Architectures for Matching
Natural Language Sentences", NIPS 2014. The paper pads texts to one length and gates windows of padding. Here padding is
excluded, and the last layer pools the real area into a fixed number of segments.
MatchPyramid: Liang Pang, Yanyan Lan, Jiafeng Guo, Jun Xu, Shengxian Wan, Xueqi Cheng: "Text Matching as Image
Recognition", AAAI 2016. The image is the similarities of all words of one text to all words of the other. With several
convolutions the paper pools after each one. Here only the last layer's images are pooled: a short text's image is not
spread over a grid before the next layer.
aNMM: Liu Yang, Qingyao Ai, Jiafeng Guo, W. Bruce Croft: "aNMM: Ranking Short Answer Texts with Attention-Based Neural
Matching Model", CIKM 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.lightning import OptimizerCallable
from datamodules.core.types import Size
from zoo.baselines.convolution import (
    WordConvolution,
    convolve,
    pool_grid,
    pool_neighbors,
    pool_segments,
    pool_squares,
    zero_outside,
)
from zoo.layers.interactions import cosine_interaction, word_pair_mask
from zoo.layers.vote import masked_softmax
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput

#: Cosines from here on are matches of equal words, which have a range of their own.
EXACT = 1 - 1e-5


class PerceptronMatching(ReadsWordVectors, MatchingTask):
    """Base of the models that score a pair by a perceptron with one hidden layer over its features.

    Args:
        hidden_size: units of its hidden layer.
        dropout: before both layers, and on the word vectors of ARC-I and ARC-II.
    """

    def __init__(self, hidden_size: Size = 64, dropout: float = 0.3, **shared: Any) -> None:
        super().__init__(**shared)
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

    def __init__(self, given: Given[MatchingSpec], options: ARCI) -> None:
        super().__init__()
        self.words, self.dropout = options.make_words(given), nn.Dropout(options.dropout)
        sizes = self.words.size, options.filters, options.window
        self.first, self.second = SentenceConvolution(*sizes), SentenceConvolution(*sizes)
        self.classifier = options.make_classifier(2 * self.first.size, given.spec)

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

    def __init__(self, given: Given[MatchingSpec], options: ARCII) -> None:
        super().__init__()
        filters, window, self.grid = options.filters, options.window, options.grid
        self.words, self.dropout = options.make_words(given), nn.Dropout(options.dropout)
        self.first = WordConvolution(self.words.size, filters[0], window)
        # The sum of the two needs one bias only.
        self.second = WordConvolution(self.words.size, filters[0], window, bias=False)
        self.others = nn.ModuleList(nn.Conv2d(*sizes, window) for sizes in pairwise(filters))
        self.classifier = options.make_classifier(self.grid[0] * self.grid[1] * filters[-1], given.spec)

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
    """The paper's ARC-I; its loss is `hinge`.

    Args:
        filters: of each convolution, with max pooling by 2 between two of them.
        window: words, or positions of the layer below, that a convolution reads; the paper's is 3.
    """

    network_type = ARCINetwork

    def __init__(self, filters: tuple[Size, ...] = (64, 64), window: Size = 3, **shared: Any) -> None:
        super().__init__(**shared)
        self.filters, self.window = filters, window


class ARCII(PerceptronMatching):
    """The paper's ARC-II; its loss is `hinge`.

    Args:
        filters: of the layer that combines the texts and of each convolution over it; 2 x 2 max pooling between.
        window: words of each text that are combined, and side of the convolutions; the paper's is 3.
        grid: parts of the first and of the second text that the last layer is pooled into.
    """

    network_type = ARCIINetwork

    def __init__(
        self,
        filters: tuple[Size, ...] = (32, 32),
        window: Size = 3,
        grid: tuple[Size, Size] = (3, 6),
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.filters, self.window, self.grid = filters, window, grid


class MatchPyramidNetwork(nn.Module):
    """Figure 2: image, convolutions, dynamic pooling, multilayer perceptron."""

    def __init__(self, given: Given[MatchingSpec], options: MatchPyramid) -> None:
        super().__init__()
        filters, kernel, self.grid = options.filters, options.kernel, options.grid
        self.words, self.unknown = options.make_words(given), given.spec.unknown
        self.convolutions = nn.ModuleList(nn.Conv2d(*sizes, kernel) for sizes in pairwise((1, *filters)))
        self.classifier = options.make_classifier(self.grid[0] * self.grid[1] * filters[-1], given.spec)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.words(batch.word, batch.char)
        interaction = cosine_interaction(vectors[batch.first_text], vectors[batch.second_text], batch)
        interaction = interaction * word_pair_mask(batch, self.unknown)  # [P, T, S]
        heights = (batch.first_text != 0).sum(dim=1)[batch.first]
        widths = (batch.second_text != 0).sum(dim=1)[batch.second]
        image = interaction.unsqueeze(3)  # [P, T, S, 1], zero outside the texts
        for convolution in self.convolutions:
            image = convolve(convolution, zero_outside(image, heights, widths))
        with torch.autocast(interaction.device.type, enabled=False):
            pooled = pool_grid(image.float(), heights, widths, self.grid)
            return MatchingOutput(self.classifier(pooled.flatten(1)), interaction.detach())


class MatchPyramid(PerceptronMatching):
    """The paper's model with the cosine of two words; its loss was `cross_entropy`, here `hinge` ranks.

    Args:
        filters: of each convolution.
        kernel: side of the convolutions.
        grid: parts of the first and of the second text that the last convolution is pooled into.
    """

    network_type = MatchPyramidNetwork

    def __init__(
        self,
        filters: tuple[Size, ...] = (16,),
        kernel: Size = 3,
        grid: tuple[Size, Size] = (3, 10),
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.filters, self.kernel, self.grid = filters, kernel, grid


def sum_by_value(cosine: Tensor, mask: Tensor, num_bins: int) -> Tensor:
    """Sums x_jk of word j's cosines in range k, [P, T, num_bins + 1] of [P, T, S]; the last range is exact matches."""
    bins = ((cosine + 1) / 2 * num_bins).long().clamp(0, num_bins - 1)
    bins = bins.masked_fill(cosine >= EXACT, num_bins)
    sums = cosine.new_zeros(*cosine.shape[:2], num_bins + 1)
    return sums.scatter_add(2, bins, cosine * mask)


class ANMMNetwork(nn.Module):
    """Figures 2 and 3: sums by value, weights shared by value, a gate over the question's words."""

    def __init__(self, given: Given[MatchingSpec], options: ANMM) -> None:
        super().__init__()
        self.words, self.unknown = options.make_words(given), given.spec.unknown
        self.num_bins = options.num_bins
        self.weight = nn.Linear(self.num_bins + 1, 1, bias=False)  # w_k
        self.gate = nn.Parameter(torch.zeros(self.words.size))  # v; at zero, all words count equally
        self.out = nn.Linear(1, given.spec.num_outputs, bias=options.has_bias(given.spec))

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.words(batch.word, batch.char)  # [U, D]
        first, second = vectors[batch.first_text], vectors[batch.second_text]
        mask = word_pair_mask(batch, self.unknown)
        cosine = cosine_interaction(first, second, batch) * mask  # [P, T, S]
        with torch.autocast(vectors.device.type, enabled=False):
            sums = sum_by_value(cosine, mask, self.num_bins)
            matches = torch.sigmoid(self.weight(sums))  # [P, T, 1]
            # The gate depends on the question alone: computed once per text, not once per pair.
            energy = first.float() @ self.gate.float()  # [N, T]
            gate = masked_softmax(energy, batch.first_text != 0)
            score = (gate[batch.first] * matches.squeeze(2)).sum(dim=1, keepdim=True)  # [P, 1]
            return MatchingOutput(self.out(score), cosine.detach())


class ANMM(ReadsWordVectors, MatchingTask):
    """The paper's aNMM-1; its loss is `hinge`.

    Args:
        num_bins: ranges that divide cosines from -1 to 1; exact matches have one more.
        optimizer: makes the optimizer; so few weights need a high rate.
    """

    network_type = ANMMNetwork

    def __init__(
        self,
        num_bins: Size = 20,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=2e-2, fused=True),
        **shared: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, **shared)
        self.num_bins = num_bins
