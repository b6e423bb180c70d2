"""Up to 49 convolutions of window 3 over characters.

Alexis Conneau, Holger Schwenk, Loic Barrault, Yann LeCun: "Very Deep Convolutional Networks for Text Classification",
EACL 2017. The published form that its best results are of: max pooling between the levels, and no shortcuts where
these do not help (up to 29 layers).

Padding is never computed with: it has no part in the batch's statistics, in poolings, or in the 8 largest values.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from zoo.baselines.text_only import CharactersOnly, TextNetwork
from zoo.tasks.base import check_sizes

#: Table 2: depth -> blocks of two convolutions on each of the four levels.
BLOCKS = {9: (1, 1, 1, 1), 17: (2, 2, 2, 2), 29: (5, 5, 2, 2), 49: (8, 8, 5, 3)}
#: Values that k-max pooling keeps of each filter.
K = 8


class RealBatchNorm(nn.BatchNorm1d):
    """Batch normalisation over the places that are there."""

    def forward(self, states: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise states [B, F, T] at real places, bool [B, T]; zero elsewhere."""
        by_place = states.transpose(1, 2)
        there = by_place[real]  # [P, F]
        # One place has no variance.
        normal = functional.batch_norm(
            there,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training and len(there) > 1,
            momentum=self.momentum or 0.0,
            eps=self.eps,
        )
        return torch.zeros_like(by_place).masked_scatter(real.unsqueeze(2), normal).transpose(1, 2)


class Block(nn.Module):
    """Figure 2: twice a convolution, batch normalisation and ReLU, and if wanted a shortcut around them."""

    def __init__(self, before: int, after: int, shortcut: bool) -> None:
        super().__init__()
        sizes = (before, after, after)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(one, other, 3, padding=1, bias=False) for one, other in pairwise(sizes)
        )
        self.norms = nn.ModuleList(RealBatchNorm(after) for _ in self.convolutions)
        self.shortcut: nn.Module | None = None
        if shortcut:
            self.shortcut = nn.Identity() if before == after else nn.Conv1d(before, after, 1, bias=False)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """States [B, after, T] of states [B, before, T]; zero where bool [B, T] is False, as they must be before."""
        found = states
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            found = norm(convolution(found), real)
            if number == 1 and self.shortcut is not None:
                found = found + self.shortcut(states)
            found = torch.relu(found)
        return found


class VDCNNNetwork(TextNetwork):
    """Figure 1."""

    def __init__(self, num_chars: int, options: Any, num_classes: int) -> None:
        """Make the layers.

        Args:
            num_chars: rows of the table of characters; row 0 is padding.
            options: of `VDCNN`.
            num_classes: C.
        """
        super().__init__(options.hidden_size, num_classes)
        filters = [options.filters * 2**level for level in range(4)]
        self.characters = nn.Embedding(num_chars, options.char_size, padding_idx=0)
        self.lowest = nn.Conv1d(options.char_size, filters[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        for level, blocks in enumerate(BLOCKS[options.depth]):
            sizes = [filters[max(level - 1, 0)], *[filters[level]] * blocks]
            self.blocks.extend(Block(one, other, options.shortcut) for one, other in pairwise(sizes))
        #: the blocks before which places are pooled.
        self.pooled = set(accumulate(BLOCKS[options.depth][:-1]))
        self.hidden = nn.Linear(K * filters[-1], options.hidden_size)
        self.second_hidden = nn.Linear(options.hidden_size, options.hidden_size)
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The second linear layer's output [B, l]."""
        real = batch.text != 0
        states = self.lowest(self.characters(batch.word[batch.text]).transpose(1, 2)) * real.unsqueeze(1)
        for number, block in enumerate(self.blocks):
            if number in self.pooled:
                # No state is below 0, so what is behind a text is never the largest.
                pooled = functional.max_pool1d(states, 3, stride=2, padding=1)
                real = real[:, ::2]
                states = pooled * real.unsqueeze(1)
            states = block(states, real)
        hidden = torch.relu(self.hidden(largest(states, real).flatten(1)))
        return torch.relu(self.second_hidden(hidden))


def largest(states: Tensor, real: Tensor) -> Tensor:
    """k-max pooling: the K largest values of each filter in the order of their places; of equal ones the first.

    Args:
        states: [B, F, T], none below 0.
        real: bool [B, T].

    Returns:
        [B, F, K]; zeros behind those of a text that has fewer places.
    """
    values = functional.pad(states.masked_fill(~real.unsqueeze(1), -1), (0, K), value=-1)
    # `topk` would take any of several equal values, zeros most of all.
    places = values.sort(dim=2, descending=True, stable=True).indices[..., :K].sort(dim=2).values
    return values.gather(2, places).clamp(min=0)


class VDCNN(CharactersOnly):
    """The paper's network of 9, 17, 29 or 49 convolutions.

    Example:
        >>> model = VDCNN(depth=29)
    """

    paper = (
        "Conneau, Schwenk, Barrault, LeCun: Very Deep Convolutional Networks for Text Classification (2017)"
    )

    def __init__(
        self,
        depth: int = 9,
        filters: int = 64,
        hidden_size: int = 2048,
        char_size: int = 16,
        shortcut: bool = False,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            depth: convolutions: 9, 17, 29 or 49.
            filters: of the lowest level; each further one has twice as many.
            hidden_size: units of each of the two hidden linear layers.
            char_size: size of a character's vector.
            shortcut: add a block's input to its output.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "filters", "hidden_size", "char_size")
        if depth not in BLOCKS:
            raise InputError(f"model.depth={depth}: choose one of {', '.join(map(str, BLOCKS))}")

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> VDCNNNetwork:
        return VDCNNNetwork(spec.num_words, self.options, len(spec.labels))
