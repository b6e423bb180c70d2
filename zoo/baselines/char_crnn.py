"""Convolutions over characters with a bidirectional LSTM on top.

Yijun Xiao, Kyunghyun Cho: "Efficient Character-level Document Classification by Combining Convolution and Recurrent
Layers", 2016. Windows are centred on every character and read zeros beyond the text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from zoo.baselines.convolution import pool_neighbours
from zoo.baselines.text_only import CharactersOnly, TextNetwork
from zoo.layers.lstm import LastStateLSTM
from zoo.tasks.base import check_sizes


class CharCRNNNetwork(TextNetwork):
    """Figure 1 (b): embedding, convolutions with max pooling by 2, the last state of an LSTM in each direction."""

    def __init__(self, num_chars: int, options: Any, num_classes: int) -> None:
        """Make the layers.

        Args:
            num_chars: rows of the table of characters; row 0 is padding.
            options: of `CharCRNN`.
            num_classes: C.
        """
        super().__init__(2 * options.hidden_size, num_classes, options.dropout)
        self.characters = nn.Embedding(num_chars, options.char_size, padding_idx=0)
        sizes = [options.char_size, *[options.filters] * len(options.windows)]
        self.windows = options.windows
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, options.filters, window)
            for before, window in zip(sizes[:-1], options.windows, strict=True)
        )
        self.lstm = LastStateLSTM(options.filters, options.hidden_size, bidirectional=True)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The last states [B, l]; zero for a text without characters."""
        lengths = (batch.text != 0).sum(dim=1)
        states = self.characters(batch.word[batch.text])  # [B, T, char_size]
        for convolution, window in zip(self.convolutions, self.windows, strict=True):
            # What a window reads beyond the text is zero: pooling leaves it so.
            padded = functional.pad(states.transpose(1, 2), ((window - 1) // 2, window // 2))
            states, lengths = pool_neighbours(torch.relu(convolution(padded)).transpose(1, 2), lengths)
        table = self.dropout(states).flatten(0, 1)
        places = torch.arange(len(table), device=table.device).view(states.shape[:2])
        last: Tensor = self.lstm(table, places, lengths)
        return last


class CharCRNN(CharactersOnly):
    """The paper's C2R1D128; `windows=(5, 5, 3)` is C3R1D128, 1,024 filters and states D1024.

    Example:
        >>> model = CharCRNN(windows=(5, 3), filters=128, hidden_size=128)
    """

    paper = "Xiao, Cho: Efficient Character-level Document Classification (2016)"

    def __init__(
        self,
        windows: tuple[int, ...] = (5, 3),
        filters: int = 128,
        hidden_size: int = 128,
        char_size: int = 8,
        dropout: float = 0.5,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            windows: characters, or places of the layer below, that each convolution reads.
            filters: of each convolution.
            hidden_size: state size of one direction.
            char_size: size of a character's vector.
            dropout: on the last convolution's output and on a text's vector.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "windows", "filters", "hidden_size", "char_size")

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> CharCRNNNetwork:
        return CharCRNNNetwork(spec.num_words, self.options, len(spec.labels))
