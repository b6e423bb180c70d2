"""Up to 49 convolutions of window 3 over characters.

Alexis Conneau, Holger Schwenk, Loic Barrault, Yann LeCun: "Very Deep Convolutional Networks for Text Classification",
EACL 2017. The form with the best published results: max pooling between the levels, and no shortcuts where these do not
help (up to 29 layers).

Padding is excluded from the batch's statistics, from poolings, and from the 8 largest values.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.baselines.text_only import CharactersOnly, TextNetwork
from zoo.tasks.base import check_sizes

#: Table 2: depth -> blocks of two convolutions on each of the four levels.
BLOCKS = {9: (1, 1, 1, 1), 17: (2, 2, 2, 2), 29: (5, 5, 2, 2), 49: (8, 8, 5, 3)}
#: Values that k-max pooling keeps of each filter.
K = 8


class RealBatchNorm(nn.BatchNorm1d):
    """Batch normalization over real positions."""

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:  # type: ignore[override]
        """Normalize states [B, F, T] at real positions, bool [B, T]; zero elsewhere."""
        by_position = states.transpose(1, 2)
        real = by_position[is_real]  # [P, F]
        normalized = functional.batch_norm(
            real,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=self.training and len(real) > 1,  # one position has no variance
            momentum=self.momentum or 0.0,
            eps=self.eps,
        )
        zeros = torch.zeros_like(by_position)
        return zeros.masked_scatter(is_real.unsqueeze(2), normalized).transpose(1, 2)


class Block(nn.Module):
    """Figure 2: twice a convolution, batch normalization and ReLU, and optionally a shortcut around them."""

    def __init__(self, before: int, after: int, shortcut: bool) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(*sizes, 3, padding=1, bias=False) for sizes in pairwise((before, after, after))
        )
        self.norms = nn.ModuleList(RealBatchNorm(after) for _ in self.convolutions)
        self.shortcut: nn.Module | None = None
        if shortcut:
            self.shortcut = nn.Identity() if before == after else nn.Conv1d(before, after, 1, bias=False)

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        """States [B, after, T] of states [B, before, T]; both are zero where `is_real`, bool [B, T], is False."""
        output = states
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            output = norm(convolution(output), is_real)
            if number == 1 and self.shortcut is not None:
                output = output + self.shortcut(states)
            output = torch.relu(output)
        return output


class VDCNNNetwork(TextNetwork):
    """Figure 1."""

    def __init__(
        self,
        spec: ClassificationSpec,
        depth: int,
        num_filters: int,
        hidden_size: int,
        char_size: int,
        shortcut: bool,
    ) -> None:
        super().__init__(hidden_size, len(spec.labels))
        filters = [num_filters * 2**level for level in range(4)]
        self.characters = nn.Embedding(spec.num_words, char_size, padding_idx=0)
        self.lowest = nn.Conv1d(char_size, filters[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        for level, blocks in enumerate(BLOCKS[depth]):
            sizes = [filters[max(level - 1, 0)], *[filters[level]] * blocks]
            self.blocks.extend(Block(before, after, shortcut) for before, after in pairwise(sizes))
        #: the blocks that are preceded by a pooling.
        self.pooled = set(accumulate(BLOCKS[depth][:-1]))
        self.hidden = nn.Linear(K * filters[-1], hidden_size)
        self.second_hidden = nn.Linear(hidden_size, hidden_size)
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The second linear layer's output [B, l]."""
        is_real = batch.text != 0
        states = self.lowest(self.characters(batch.word[batch.text]).transpose(1, 2)) * is_real.unsqueeze(1)
        for number, block in enumerate(self.blocks):
            if number in self.pooled:
                # No state is below 0, so zeroed padding is never larger.
                pooled = functional.max_pool1d(states, 3, stride=2, padding=1)
                is_real = is_real[:, ::2]
                states = pooled * is_real.unsqueeze(1)
            states = block(states, is_real)
        hidden = torch.relu(self.hidden(k_max_pool(states, is_real).flatten(1)))
        return torch.relu(self.second_hidden(hidden))


def k_max_pool(states: Tensor, is_real: Tensor) -> Tensor:
    """The K largest values of each filter in the order of their positions; of equal values, the first.

    Args:
        states: [B, F, T], none below 0.
        is_real: bool [B, T].

    Returns:
        [B, F, K]; a text with fewer positions has zeros at the end.
    """
    values = functional.pad(states.masked_fill(~is_real.unsqueeze(1), -1), (0, K), value=-1)
    # `topk` may return any of several equal values, and zeros are frequent.
    positions = values.sort(dim=2, descending=True, stable=True).indices[..., :K].sort(dim=2).values
    return values.gather(2, positions).clamp(min=0)


class VDCNN(CharactersOnly):
    """The paper's network of 9, 17, 29 or 49 convolutions."""

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
            filters: of the lowest level; each further level has twice as many.
            hidden_size: units of each of the two hidden linear layers.
            char_size: size of a character's vector.
            shortcut: add a block's input to its output.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(filters=filters, hidden_size=hidden_size, char_size=char_size)
        if depth not in BLOCKS:
            raise InputError(f"model.depth={depth}: choose one of {', '.join(map(str, BLOCKS))}")
        self.depth, self.filters, self.hidden_size = depth, filters, hidden_size
        self.char_size, self.shortcut = char_size, shortcut

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> VDCNNNetwork:
        return VDCNNNetwork(spec, self.depth, self.filters, self.hidden_size, self.char_size, self.shortcut)
