"""Text matching as image recognition.

Liang Pang, Yanyan Lan, Jiafeng Guo, Jun Xu, Shengxian Wan, Xueqi Cheng: "Text Matching as Image Recognition",
AAAI 2016.

The similarities of all words of one text to all words of the other are an image, in which phrases that match
are diagonal strokes. Convolutions look for such patterns, dynamic pooling brings images of all sizes to one,
and an MLP scores what is there.

With several layers of convolutions the paper pools after each; here only the last one's images are pooled, so that
a short text's image is not spread over a grid before the next layer sees it. With one layer, the default, it is the
same.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.baselines.convolution import inside, pool_grid
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, dot_interaction, word_pair_mask
from zoo.tasks.base import check_choices, check_sizes
from zoo.tasks.encoders import WordVectors
from zoo.tasks.matching.task import MatchingOutput, MatchingTask

Similarity: TypeAlias = Literal["cosine", "dot", "indicator"]


class MatchPyramidNetwork(nn.Module):
    """Figure 2: image, convolutions, dynamic pooling, MLP."""

    def __init__(self, words: WordEncoder | None, options: Any, spec: MatchingSpec, bias: bool) -> None:
        """Make the parts.

        Args:
            words: vectors of words; None where words are only told apart.
            options: of `MatchPyramid`.
            spec: of the data.
            bias: give the last layer a bias.
        """
        super().__init__()
        self.words = words
        self.unknown = spec.unknown
        self.similarity = options.similarity
        filters, kernel, grid = options.filters, options.kernel, options.grid
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel) for before, after in zip((1, *filters), filters, strict=False)
        )
        self.sides = ((kernel - 1) // 2, kernel // 2) * 2
        self.grid = tuple(grid)
        self.dropout = nn.Dropout(options.dropout)
        self.hidden = nn.Linear(grid[0] * grid[1] * filters[-1], options.hidden_size)
        self.out = nn.Linear(options.hidden_size, spec.num_outputs, bias=bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        interaction = self.compare(batch)  # [P, T, S]
        heights = (batch.first_text != 0).sum(dim=1)[batch.first]
        widths = (batch.second_text != 0).sum(dim=1)[batch.second]
        image = interaction.unsqueeze(3)  # [P, T, S, 1], zero outside the texts
        for number, convolution in enumerate(self.convolutions):
            if number > 0:
                # What a convolution left beyond the texts must not come back through the next one.
                image = inside(image, heights, widths)
            padded = nn.functional.pad(image.permute(0, 3, 1, 2), self.sides)
            image = torch.relu(convolution(padded)).permute(0, 2, 3, 1)
        with torch.autocast(interaction.device.type, enabled=False):
            pooled = pool_grid(image.float().contiguous(), heights, widths, self.grid)
            hidden = torch.relu(self.hidden(self.dropout(pooled.flatten(1))))
            return MatchingOutput(self.out(self.dropout(hidden)), interaction.detach())

    def compare(self, batch: MatchingBatch) -> Tensor:
        """The image: float32 [P, T, S], 0 where a place is padding or both words are unknown."""
        mask = word_pair_mask(batch, self.unknown)
        if self.words is None:
            first = batch.first_text[batch.first].unsqueeze(2)
            second = batch.second_text[batch.second].unsqueeze(1)
            return ((first == second) & mask).float()
        vectors = self.words(batch.word, batch.char)
        interact = cosine_interaction if self.similarity == "cosine" else dot_interaction
        return interact(vectors[batch.first_text], vectors[batch.second_text], batch) * mask


class MatchPyramid(WordVectors, MatchingTask):
    """The paper's model.

    Example:
        >>> model = MatchPyramid(similarity="cosine", filters=(16,), grid=(3, 10))
    """

    paper = "Pang et al.: Text Matching as Image Recognition (2016)"

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
            similarity: of two words: `cosine` or `dot` product of their vectors, or `indicator`: 1 if they are
                the same word, which reads no vectors.
            filters: of each convolution.
            kernel: side of the convolutions.
            grid: parts of the first and of the second text that the last convolution is pooled into.
            hidden_size: units of the MLP's hidden layer.
            dropout: in the MLP.
            **shared: options of `WordVectors`, `MatchingTask` (the paper's loss is `cross_entropy`) and `Task`.
        """
        super().__init__(**shared)
        check_choices(self.options, similarity=("cosine", "dot", "indicator"))
        check_sizes(self.options, "filters", "grid", "kernel", "hidden_size")

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> MatchPyramidNetwork:
        words = None if self.options.similarity == "indicator" else self.make_words(spec, word_vectors)
        return MatchPyramidNetwork(words, self.options, spec, bias=self.sees_constants(spec))
