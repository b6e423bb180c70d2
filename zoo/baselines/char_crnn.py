"""Convolutions over characters with a bidirectional LSTM on top.

Yijun Xiao, Kyunghyun Cho: "Efficient Character-level Document Classification by Combining Convolution and Recurrent
Layers", 2016. Windows are centered on every character and read zeros beyond the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.types import PlainDict
from zoo.baselines.convolution import convolve, pool_neighbors
from zoo.baselines.text_only import CharactersOnly, TextNetwork
from zoo.layers.lstm import LastStateLSTM
from zoo.tasks.base import check_sizes


class CharCRNNNetwork(TextNetwork):
    """Figure 1 (b): embedding, convolutions with max pooling by 2, the last state of an LSTM in each direction."""

    def __init__(
        self,
        spec: ClassificationSpec,
        windows: Sequence[int],
        filters: int,
        hidden_size: int,
        char_size: int,
        dropout: float,
    ) -> None:
        super().__init__(2 * hidden_size, len(spec.labels), dropout)
        self.characters = nn.Embedding(spec.num_words, char_size, padding_idx=0)
        sizes = pairwise([char_size, *[filters] * len(windows)])
        self.convolutions = nn.ModuleList(
            nn.Conv1d(*of_layer, window) for of_layer, window in zip(sizes, windows, strict=True)
        )
        self.lstm = LastStateLSTM(filters, hidden_size, bidirectional=True)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The last states [B, l]; zero for a text without characters."""
        lengths = (batch.text != 0).sum(dim=1)
        states = self.characters(batch.word[batch.text])  # [B, T, char_size]
        for convolution in self.convolutions:
            states, lengths = pool_neighbors(convolve(convolution, states), lengths)  # zero beyond the text
        table = self.dropout(states).flatten(0, 1)
        rows = torch.arange(len(table), device=table.device).view(states.shape[:2])
        last: Tensor = self.lstm(table, rows, lengths)
        return last


class CharCRNN(CharactersOnly):
    """The paper's C2R1D128; `windows=(5, 5, 3)` is C3R1D128, 1,024 filters and states D1024."""

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
            windows: characters, or positions of the layer below, that each convolution reads.
            filters: of each convolution.
            hidden_size: state size of one direction.
            char_size: size of a character's vector.
            dropout: on the last convolution's output and on a text's vector.
            **shared: options of `Task`.
        """
        super().__init__(**shared)
        check_sizes(windows=windows, filters=filters, hidden_size=hidden_size, char_size=char_size)
        self.windows, self.filters, self.hidden_size = windows, filters, hidden_size
        self.char_size, self.dropout = char_size, dropout

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> CharCRNNNetwork:
        return CharCRNNNetwork(
            spec, self.windows, self.filters, self.hidden_size, self.char_size, self.dropout
        )
