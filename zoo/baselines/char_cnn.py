"""Six convolutions over characters and three linear layers.

Xiang Zhang, Junbo Zhao, Yann LeCun: "Character-level Convolutional Networks for Text Classification", NIPS 2015.

The input is a frame of fixed length, a part of the network: the last character first, then what is left of the text
before it, then zeros (Section 2.2). So zeros behind a short text are read as the paper reads them, and are the same in
any batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from zoo.baselines.text_only import CharactersOnly, TextNetwork
from zoo.tasks.base import check_sizes
from zoo.training.warm_start import numbered

#: Table 1: window of each convolution, and of the max pooling behind it (1 = none).
LAYERS = ((7, 3), (7, 3), (3, 1), (3, 1), (3, 1), (3, 3))
#: Ids of a vocabulary that are no characters: padding and the unknown one.
RESERVED = 2


def frames_left(length: int) -> int:
    """Places that the convolutions and poolings leave of a frame of so many characters; below 1 = too short."""
    for window, pooling in LAYERS:
        length = (length - window + 1) // pooling
    return length


class CharCNNNetwork(TextNetwork):
    """Tables 1 and 2."""

    def __init__(self, num_chars: int, options: Any, num_classes: int) -> None:
        """Make the layers.

        Args:
            num_chars: different characters.
            options: of `CharCNN`.
            num_classes: C.
        """
        super().__init__(options.hidden_size, num_classes, options.dropout)
        self.num_chars, self.length = num_chars, options.length
        filters = options.filters
        self.convolutions = nn.ModuleList(
            nn.Conv1d(filters if number else num_chars, filters, window)
            for number, (window, _) in enumerate(LAYERS)
        )
        self.first = nn.Linear(frames_left(options.length) * filters, options.hidden_size)
        self.second = nn.Linear(options.hidden_size, options.hidden_size)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The second linear layer's output [B, l]."""
        states = self.quantize(batch)  # [B, characters, length]
        for convolution, (_, pooling) in zip(self.convolutions, LAYERS, strict=True):
            states = functional.max_pool1d(torch.relu(convolution(states)), pooling)
        hidden = torch.relu(self.first(states.flatten(1)))
        return torch.relu(self.second(self.dropout(hidden)))

    def quantize(self, batch: ClassificationBatch) -> Tensor:
        """One-hot vectors of characters, the last first: float32 [B, characters, length].

        Zero for characters that training lacks, and behind a text.
        """
        text = batch.text[:, : self.length]
        lengths = (text != 0).sum(dim=1, keepdim=True)
        place = torch.arange(self.length, device=text.device)
        inside = place < lengths  # [B, length]
        backwards = text.gather(1, (lengths - 1 - place).clamp(min=0))
        number = (batch.word[backwards] - RESERVED) * inside  # below 0 = unknown
        known = inside & (batch.word[backwards] >= RESERVED)
        frame = functional.one_hot(number.clamp(min=0), self.num_chars) * known.unsqueeze(2)
        return frame.float().transpose(1, 2)


class CharCNN(CharactersOnly):
    """The paper's small network; `filters=1024, hidden_size=2048` is the large one.

    Example:
        >>> model = CharCNN(length=1014)
    """

    paper = "Zhang, Zhao, LeCun: Character-level Convolutional Networks for Text Classification (2015)"

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
            length: characters of the frame; give `data.max_length` the same number.
            filters: of each convolution.
            hidden_size: units of each of the two hidden linear layers.
            dropout: between linear layers.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "filters", "hidden_size")
        if frames_left(length) < 1:
            least = next(number for number in range(1, 1015) if frames_left(number) == 1)
            raise InputError(f"model.length={length}: the convolutions read {least} characters at least")

    @override
    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        # As many characters as the frame has.
        super().check_data(data)
        length, kept = self.options.length, data.options.max_length
        if kept != length:
            raise InputError(f"model.length={length}, data.max_length={kept}: make them agree")

    @override
    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        if name == "network.convolutions.0.weight":  # a column for each character
            return numbered(range(len(weight)), data["vocabulary"]["words"])
        return super().row_names(name, weight, data)

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> CharCNNNetwork:
        return CharCNNNetwork(spec.num_words - RESERVED, self.options, len(spec.labels))
