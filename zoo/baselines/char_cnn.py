"""Six convolutions over characters and three linear layers.

Xiang Zhang, Junbo Zhao, Yann LeCun: "Character-level Convolutional Networks for Text Classification", NIPS 2015.

The input is a frame of fixed length: the characters of the text, the last one first, then zeros (Section 2.2). The
network reads zeros after a short text as in the paper, and in every batch the same number of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.base import AnyDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.state import DataState
from zoo.baselines.text_only import CharactersOnly, TextNetwork
from zoo.tasks.base import check_sizes
from zoo.training.warm_start import numbered

#: Table 1: window of each convolution, and of the max pooling after it (1 = none).
LAYERS = ((7, 3), (7, 3), (3, 1), (3, 1), (3, 1), (3, 3))
#: Vocabulary ids of padding and of the unknown character.
RESERVED = 2


def remaining_length(length: int) -> int:
    """Length of a frame after all convolutions and poolings; below 1 = the frame is too short."""
    for window, pooling in LAYERS:
        length = (length - window + 1) // pooling
    return length


class CharCNNNetwork(TextNetwork):
    """Tables 1 and 2."""

    def __init__(
        self, spec: ClassificationSpec, length: int, filters: int, hidden_size: int, dropout: float
    ) -> None:
        super().__init__(hidden_size, len(spec.labels), dropout)
        self.num_chars, self.length = spec.num_words - RESERVED, length
        self.convolutions = nn.ModuleList(
            nn.Conv1d(filters if number else self.num_chars, filters, window)
            for number, (window, _) in enumerate(LAYERS)
        )
        self.first = nn.Linear(remaining_length(length) * filters, hidden_size)
        self.second = nn.Linear(hidden_size, hidden_size)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The second linear layer's output [B, l]."""
        states = self.quantize(batch)  # [B, characters, length]
        for convolution, (_, pooling) in zip(self.convolutions, LAYERS, strict=True):
            states = functional.max_pool1d(torch.relu(convolution(states)), pooling)
        hidden = torch.relu(self.first(states.flatten(1)))
        return torch.relu(self.second(self.dropout(hidden)))

    def quantize(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """One-hot vectors of characters, the last first: float32 [B, characters, length].

        Zero for unknown characters, and after a text.
        """
        text = batch.text[:, : self.length]
        lengths = (text != 0).sum(dim=1, keepdim=True)
        position = torch.arange(self.length, device=text.device)
        is_inside = position < lengths  # [B, length]
        backwards = text.gather(1, (lengths - 1 - position).clamp(min=0))
        number = (batch.word[backwards] - RESERVED) * is_inside  # negative: unknown
        is_known = is_inside & (batch.word[backwards] >= RESERVED)
        frame = functional.one_hot(number.clamp(min=0), self.num_chars) * is_known.unsqueeze(2)
        return frame.float().transpose(1, 2)


class CharCNN(CharactersOnly):
    """The paper's small network; the large one has `filters=1024, hidden_size=2048`."""

    def __init__(
        self,
        length: int = 1014,
        filters: int = 256,
        hidden_size: int = 1024,
        dropout: float = 0.5,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            length: characters of the frame; set `data.max_length` to the same number.
            filters: of each convolution.
            hidden_size: units of each of the two hidden linear layers.
            dropout: between linear layers.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(filters=filters, hidden_size=hidden_size)
        if remaining_length(length) < 1:
            least = next(number for number in range(1, 1015) if remaining_length(number) == 1)
            raise InputError(f"model.length={length}: the convolutions read at least {least} characters")
        self.length, self.filters, self.hidden_size, self.dropout = length, filters, hidden_size, dropout

    @override
    def check_data(self, data: AnyDataModule) -> None:
        super().check_data(data)
        length = data.options.max_length
        if length != self.length:
            raise InputError(f"model.length={self.length}, data.max_length={length}: make them agree")

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name == "network.convolutions.0.weight":  # a column for each character
            return numbered(range(len(weight)), data.vocabulary["words"])
        return super().row_names(name, weight, data)

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> CharCNNNetwork:
        return CharCNNNetwork(spec, self.length, self.filters, self.hidden_size, self.dropout)
