"""Text matching as image recognition.

Liang Pang, Yanyan Lan, Jiafeng Guo, Jun Xu, Shengxian Wan, Xueqi Cheng: "Text Matching as Image Recognition", AAAI
2016. The image is the similarities of all words of one text to all words of the other.

With several convolutions the paper pools after each one. Here only the last layer's images are pooled: a short text's
image is not spread over a grid before the next layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.baselines.convolution import FeatureClassifier, convolve, pool_grid, zero_outside
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, dot_interaction, word_pair_mask
from zoo.tasks.base import check_choice, check_sizes
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.matching.outputs import MatchingOutput
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given

Similarity: TypeAlias = Literal["cosine", "dot", "indicator"]


class MatchPyramidNetwork(nn.Module):
    """Figure 2: image, convolutions, dynamic pooling, multilayer perceptron; without `words`, an indicator image."""

    def __init__(
        self,
        words: WordEncoder | None,
        spec: MatchingSpec,
        similarity: Similarity,
        filters: Sequence[int],
        kernel: int,
        grid: tuple[int, int],
        hidden_size: int,
        dropout: float,
        bias: bool,
    ) -> None:
        super().__init__()
        self.words, self.unknown = words, spec.unknown
        self.similarity, self.grid = similarity, grid
        self.convolutions = nn.ModuleList(nn.Conv2d(*sizes, kernel) for sizes in pairwise((1, *filters)))
        features = grid[0] * grid[1] * filters[-1]
        self.classifier = FeatureClassifier(features, hidden_size, spec.num_outputs, dropout, bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        interaction = self.compare(batch)  # [P, T, S]
        heights = (batch.first_text != 0).sum(dim=1)[batch.first]
        widths = (batch.second_text != 0).sum(dim=1)[batch.second]
        image = interaction.unsqueeze(3)  # [P, T, S, 1], zero outside the texts
        for number, convolution in enumerate(self.convolutions):
            if number > 0:
                # The last convolution wrote beyond the texts, too.
                image = zero_outside(image, heights, widths)
            image = convolve(convolution, image)
        with torch.autocast(interaction.device.type, enabled=False):
            pooled = pool_grid(image.float(), heights, widths, self.grid)
            return MatchingOutput(self.classifier(pooled.flatten(1)), interaction.detach())

    def compare(self, batch: MatchingBatch) -> Tensor:
        """The image: float32 [P, T, S], 0 at padding and where both words are unknown."""
        mask = word_pair_mask(batch, self.unknown)
        if self.words is None:
            first = batch.first_text[batch.first].unsqueeze(2)
            second = batch.second_text[batch.second].unsqueeze(1)
            return ((first == second) & mask).float()
        vectors = self.words(batch.word, batch.char)
        interact = cosine_interaction if self.similarity == "cosine" else dot_interaction
        return interact(vectors[batch.first_text], vectors[batch.second_text], batch) * mask


class MatchPyramid(ReadsWordVectors, MatchingTask):
    """The paper's model; its loss is `cross_entropy`."""

    def __init__(
        self,
        similarity: Similarity = "cosine",
        filters: tuple[int, ...] = (16,),
        kernel: int = 3,
        grid: tuple[int, int] = (3, 10),
        hidden_size: int = 64,
        dropout: float = 0.3,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            similarity: of two words' vectors: `cosine` or `dot` product; or `indicator`: 1 for the same word.
            filters: of each convolution.
            kernel: side of the convolutions.
            grid: parts of the first and of the second text that the last convolution is pooled into.
            hidden_size: units of the perceptron's hidden layer.
            dropout: in the perceptron.
        """
        super().__init__(**shared)
        check_choice("similarity", similarity, ("cosine", "dot", "indicator"))
        check_sizes(filters=filters, grid=grid, kernel=kernel, hidden_size=hidden_size)
        self.similarity, self.filters, self.kernel, self.grid = similarity, filters, kernel, grid
        self.hidden_size, self.dropout = hidden_size, dropout

    @override
    def build_network(self, given: Given[MatchingSpec]) -> MatchPyramidNetwork:
        return MatchPyramidNetwork(
            None if self.similarity == "indicator" else self.make_words(given),
            given.spec,
            self.similarity,
            self.filters,
            self.kernel,
            self.grid,
            self.hidden_size,
            self.dropout,
            bias=self.has_bias(given.spec),
        )
