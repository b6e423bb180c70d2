"""Text matching as image recognition.

Liang Pang, Yanyan Lan, Jiafeng Guo, Jun Xu, Shengxian Wan, Xueqi Cheng: "Text Matching as Image Recognition", AAAI
2016. The image is the similarities of all words of one text to all words of the other.

With several convolutions the paper pools after each one. Here only the last layer's images are pooled: a short text's
image is not spread over a grid before the next layer.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.baselines.arc import PerceptronMatching
from zoo.baselines.convolution import convolve, pool_grid, zero_outside
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, word_pair_mask
from zoo.tasks.base import check_sizes
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput


class MatchPyramidNetwork(nn.Module):
    """Figure 2: image, convolutions, dynamic pooling, multilayer perceptron."""

    def __init__(self, words: WordEncoder, spec: MatchingSpec, options: MatchPyramid) -> None:
        super().__init__()
        filters, self.grid = options.filters, options.grid
        self.words, self.unknown = words, spec.unknown
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*sizes, options.kernel) for sizes in pairwise((1, *filters))
        )
        self.classifier = options.make_classifier(self.grid[0] * self.grid[1] * filters[-1], spec)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.words(batch.word, batch.char)
        interaction = cosine_interaction(vectors[batch.first_text], vectors[batch.second_text], batch)
        interaction = interaction * word_pair_mask(batch, self.unknown)  # [P, T, S]
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


class MatchPyramid(PerceptronMatching):
    """The paper's model with the cosine of two words; its loss is `cross_entropy`."""

    def __init__(
        self,
        filters: tuple[int, ...] = (16,),
        kernel: int = 3,
        grid: tuple[int, int] = (3, 10),
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            filters: of each convolution.
            kernel: side of the convolutions.
            grid: parts of the first and of the second text that the last convolution is pooled into.
        """
        super().__init__(**shared)
        check_sizes(filters=filters, grid=grid, kernel=kernel)
        self.filters, self.kernel, self.grid = filters, kernel, grid

    @override
    def build_network(self, given: Given[MatchingSpec]) -> MatchPyramidNetwork:
        return MatchPyramidNetwork(self.make_words(given), given.spec, self)
