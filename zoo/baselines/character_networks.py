"""Networks over the characters of a text: CharCNN, CharCRNN and VDCNN.

CharCNN: Xiang Zhang, Junbo Zhao, Yann LeCun: "Character-level Convolutional Networks for Text Classification", NIPS
2015. The input is a frame of fixed length: the characters of the text, the last one first, then zeros (Section 2.2).
CharCRNN: Yijun Xiao, Kyunghyun Cho: "Efficient Character-level Document Classification by Combining Convolution and
Recurrent Layers", 2016. Windows are centered on every character and read zeros beyond the text.
VDCNN: Alexis Conneau, Holger Schwenk, Loic Barrault, Yann LeCun: "Very Deep Convolutional Networks for Text
Classification", EACL 2017, with max pooling between the levels and no shortcuts, the form with the best results.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.classification import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.core.types import Size
from datamodules.state import DataState
from datamodules.text.tokenization import CHARACTERS
from zoo.baselines.convolution import convolve, pool_neighbors
from zoo.baselines.word_networks import TextNetwork, TextOnly
from zoo.layers.recurrent import RowLSTM
from zoo.tasks.model import Given
from zoo.training.warm_start import numbered

#: Table 1 of CharCNN: window of each convolution, and of the max pooling after it (1 = none).
LAYERS = ((7, 3), (7, 3), (3, 1), (3, 1), (3, 1), (3, 3))
#: Vocabulary ids of padding and of the unknown character.
RESERVED = 2


class CharactersOnly(TextOnly):
    """Base of the classifiers whose words, in the data's vocabulary, are characters."""

    @override
    def check_data(self, data: ClassificationDataModule) -> None:
        super().check_data(data)
        if data.options.tokenizer != CHARACTERS:
            raise InputError(
                f"{type(self).__name__} reads characters, but data.tokenizer={data.options.tokenizer}: set"
                f" --data.tokenizer {CHARACTERS}, and --data.max_length to the characters kept of a text"
            )


def remaining_length(length: int) -> int:
    """Length of a frame after all convolutions and poolings; below 1, the frame is too short."""
    for window, pooling in LAYERS:
        length = (length - window + 1) // pooling
    return length


class CharCNNNetwork(TextNetwork):
    """Tables 1 and 2."""

    def __init__(self, given: Given[ClassificationSpec], options: CharCNN) -> None:
        filters, hidden_size = options.filters, options.hidden_size
        super().__init__(hidden_size, given.spec, options.dropout)
        self.num_chars, self.length = given.spec.num_words - RESERVED, options.length
        self.convolutions = nn.ModuleList(
            nn.Conv1d(filters if number else self.num_chars, filters, window)
            for number, (window, _) in enumerate(LAYERS)
        )
        self.first = nn.Linear(remaining_length(self.length) * filters, hidden_size)
        self.second = nn.Linear(hidden_size, hidden_size)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        states = self.quantize(batch)  # [B, characters, length]
        for convolution, (_, pooling) in zip(self.convolutions, LAYERS, strict=True):
            states = functional.max_pool1d(torch.relu(convolution(states)), pooling)
        hidden = torch.relu(self.first(states.flatten(1)))
        return torch.relu(self.second(self.dropout(hidden)))

    def quantize(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """One-hot vectors [B, characters, length], the last character first; zero for unknown ones and after a text."""
        text = batch.text[:, : self.length]
        lengths = (text != 0).sum(dim=1, keepdim=True)
        position = torch.arange(self.length, device=text.device)
        is_inside = position < lengths  # [B, length]
        backwards = text.gather(1, (lengths - 1 - position).clamp(min=0))
        number = batch.word[backwards] - RESERVED  # negative: unknown
        is_known = is_inside & (number >= 0)
        frame = functional.one_hot(number.clamp(min=0), self.num_chars) * is_known.unsqueeze(2)
        return frame.float().transpose(1, 2)


class CharCNN(CharactersOnly):
    """The paper's small network; the large one has `filters=1024, hidden_size=2048`.

    Args:
        length: characters of the frame; set `data.max_length` to the same number.
        filters: of each convolution.
        hidden_size: units of each of the two hidden linear layers.
        dropout: between linear layers.
    """

    network_type = CharCNNNetwork

    def __init__(
        self,
        length: int = 1014,
        filters: Size = 256,
        hidden_size: Size = 1024,
        dropout: float = 0.5,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if remaining_length(length) < 1:
            least = next(number for number in range(1, 1015) if remaining_length(number) == 1)
            raise InputError(f"model.length={length}: the convolutions read at least {least} characters")
        self.length, self.filters, self.hidden_size, self.dropout = length, filters, hidden_size, dropout

    @override
    def check_data(self, data: ClassificationDataModule) -> None:
        super().check_data(data)
        length = data.options.max_length
        if length != self.length:
            raise InputError(f"model.length={self.length}, data.max_length={length}: make them agree")

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name == "network.convolutions.0.weight":  # a column for each character
            return numbered(range(len(weight)), data.vocabulary["words"])
        return super().row_names(name, weight, data)


#: Size of a character's vector in CharCRNN.
CRNN_SIZE = 8


class CharCRNNNetwork(TextNetwork):
    """Figure 1 (b): embedding, convolutions with max pooling by 2, the last state of an LSTM in each direction."""

    def __init__(self, given: Given[ClassificationSpec], options: CharCRNN) -> None:
        windows, filters, hidden_size = options.windows, options.filters, options.hidden_size
        super().__init__(2 * hidden_size, given.spec, options.dropout)
        self.characters = nn.Embedding(given.spec.num_words, CRNN_SIZE, padding_idx=0)
        layers = zip(pairwise([CRNN_SIZE, *[filters] * len(windows)]), windows, strict=True)
        self.convolutions = nn.ModuleList(nn.Conv1d(*sizes, window) for sizes, window in layers)
        self.lstm = RowLSTM(filters, hidden_size, bidirectional=True)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        lengths = (batch.text != 0).sum(dim=1)
        states = self.characters(batch.word[batch.text])  # [B, T, CRNN_SIZE]
        for convolution in self.convolutions:
            states, lengths = pool_neighbors(convolve(convolution, states), lengths)  # zero beyond the text
        table = self.dropout(states).flatten(0, 1)
        rows = torch.arange(len(table), device=table.device).view(states.shape[:2])
        return self.lstm.last_states(table, rows, lengths)


class CharCRNN(CharactersOnly):
    """The paper's C2R1D128; `windows=(5, 5, 3)` is C3R1D128, 1,024 filters and states D1024.

    Args:
        windows: characters, or positions of the layer below, that each convolution reads.
        filters: of each convolution.
        hidden_size: state size of one direction.
        dropout: on the last convolution's output and on a text's vector.
    """

    network_type = CharCRNNNetwork

    def __init__(
        self,
        windows: tuple[Size, ...] = (5, 3),
        filters: Size = 128,
        hidden_size: Size = 128,
        dropout: float = 0.5,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.windows, self.filters, self.hidden_size, self.dropout = windows, filters, hidden_size, dropout


#: Size of a character's vector in VDCNN.
VDCNN_SIZE = 16
#: Table 2 of VDCNN: depth -> blocks of two convolutions on each of the four levels.
BLOCKS = {9: (1, 1, 1, 1), 17: (2, 2, 2, 2), 29: (5, 5, 2, 2), 49: (8, 8, 5, 3)}
#: Values that k-max pooling keeps of each filter.
K = 8


class RealBatchNorm(nn.BatchNorm1d):
    """Batch normalization over real positions."""

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:  # type: ignore[override]
        """Normalize states [B, F, T] at real positions, bool [B, T]; zero elsewhere."""
        by_position = states.transpose(1, 2)
        real = by_position[is_real]  # [P, F]
        estimates = self.running_mean, self.running_var, self.weight, self.bias
        is_training = self.training and len(real) > 1  # one position has no variance
        normalized = functional.batch_norm(real, *estimates, is_training, self.momentum or 0.0, self.eps)
        zeros = torch.zeros_like(by_position)
        return zeros.masked_scatter(is_real.unsqueeze(2), normalized).transpose(1, 2)


class ConvolutionBlock(nn.Module):
    """Figure 2: twice a convolution, batch normalization and ReLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        layers = pairwise((before, after, after))
        self.convolutions = nn.ModuleList(nn.Conv1d(*sizes, 3, padding=1, bias=False) for sizes in layers)
        self.norms = nn.ModuleList(RealBatchNorm(after) for _ in self.convolutions)

    def forward(self, states: Tensor, is_real: Tensor) -> Tensor:
        """States [B, after, T] of states [B, before, T]; both are zero where `is_real`, bool [B, T], is False."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            states = torch.relu(norm(convolution(states), is_real))
        return states


class VDCNNNetwork(TextNetwork):
    """Figure 1."""

    def __init__(self, given: Given[ClassificationSpec], options: VDCNN) -> None:
        super().__init__(options.hidden_size, given.spec)
        filters = [options.filters * 2**level for level in range(4)]
        self.characters = nn.Embedding(given.spec.num_words, VDCNN_SIZE, padding_idx=0)
        self.lowest = nn.Conv1d(VDCNN_SIZE, filters[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        for level, blocks in enumerate(BLOCKS[options.depth]):
            sizes = [filters[max(level - 1, 0)], *[filters[level]] * blocks]
            self.blocks.extend(ConvolutionBlock(before, after) for before, after in pairwise(sizes))
        #: the blocks that are preceded by a pooling.
        self.pooled = set(accumulate(BLOCKS[options.depth][:-1]))
        self.hidden = nn.Linear(K * filters[-1], self.size)
        self.second_hidden = nn.Linear(self.size, self.size)
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
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
    """The K largest values, in the order of their positions, of states [B, F, T] >= 0: [B, F, K], filled with zeros."""
    values = functional.pad(states.masked_fill(~is_real.unsqueeze(1), -1), (0, K), value=-1)
    # Of equal values, the first are taken: `topk` may return any, and zeros are frequent.
    positions = values.sort(dim=2, descending=True, stable=True).indices[..., :K].sort(dim=2).values
    return values.gather(2, positions).clamp(min=0)


class VDCNN(CharactersOnly):
    """The paper's network of 9, 17, 29 or 49 convolutions.

    Args:
        depth: convolutions: 9, 17, 29 or 49.
        filters: of the lowest level; each further level has twice as many.
        hidden_size: units of each of the two hidden linear layers.
    """

    network_type = VDCNNNetwork

    def __init__(
        self, depth: Literal[9, 17, 29, 49] = 9, filters: Size = 64, hidden_size: Size = 2048, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.depth, self.filters, self.hidden_size = depth, filters, hidden_size
