"""Deep structured semantic models over letter trigrams, for pairs and for the retrieval from a collection.

DSSM: Po-Sen Huang, Xiaodong He, Jianfeng Gao, Li Deng, Alex Acero, Larry Heck: "Learning Deep Structured Semantic
Models for Web Search using Clickthrough Data", CIKM 2013.
CDSSM: Yelong Shen, Xiaodong He, Jianfeng Gao, Li Deng, Gregoire Mesnil: "A Latent Semantic Model with
Convolutional-Pooling Structure for Information Retrieval", CIKM 2014 (also called CLSM).

The retrieval models have the sizes that LSTM-RNN is compared with: Hamid Palangi et al.: "Deep Sentence Embedding Using
Long Short-Term Memory Networks", 2016, Table IV.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClickSpec, MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.matching.datamodule import MatchingDataModule
from datamodules.state import DataState
from datamodules.text.tokenization import WORD_TOKENIZERS
from zoo.baselines.convolution import window_sum
from zoo.layers.dual_encoder import Tower, TrigramLayer
from zoo.layers.interactions import PairCosine, unit
from zoo.tasks.base import check_sizes
from zoo.tasks.matching.outputs import MatchingOutput
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.retrieval.trigram_task import TrigramRetrieval
from zoo.training.warm_start import numbered

#: Initial factor of the cosine of pairs (the papers' gamma), which is trained.
FIRST_SCALE = 10.0


class DenseTower(Tower):
    """Base of the encoders: a layer over trigrams, and dense layers."""

    def __init__(self, hashing: TrigramLayer, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.hashing = hashing
        self.bias = nn.Parameter(torch.zeros(hidden_sizes[0]))
        layers = [nn.Linear(*sizes) for sizes in pairwise(hidden_sizes)]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.size = hidden_sizes[-1]

    def dense(self, state: Tensor) -> Tensor:
        """Vectors [N, d] of the first layer's states."""
        for layer in self.layers:
            state = torch.tanh(layer(state))
        return state


class BagTower(DenseTower):
    """DSSM: a multilayer perceptron over the sum of a text's trigram counts."""

    def __init__(self, num_chars: int, trigrams: int | list[int], hidden_sizes: Sequence[int]) -> None:
        size = hidden_sizes[0]
        super().__init__(TrigramLayer(num_chars, trigrams, size, size), hidden_sizes)

    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """See `Tower.forward`."""
        summed = functional.embedding_bag(text, words, mode="sum", padding_idx=0)
        return self.dense(torch.tanh(summed + self.bias))


class WindowTower(DenseTower):
    """CDSSM: a convolution over windows of words, the maximum over time, and dense layers."""

    def __init__(
        self, num_chars: int, trigrams: int | list[int], window: int, hidden_sizes: Sequence[int]
    ) -> None:
        size = hidden_sizes[0]
        # A unit's fan-in is the trigrams of the window; each position has columns of its own.
        super().__init__(TrigramLayer(num_chars, trigrams, window * size, size), hidden_sizes)
        self.window = window

    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """See `Tower.forward`."""
        sums = window_sum(words.view(len(words), self.window, -1), text)  # [N, T, F]
        is_word = (text != 0).unsqueeze(2)
        # Bias and tanh keep the order: after the maximum, they are computed for one word only.
        most = sums.masked_fill(~is_word, torch.finfo(sums.dtype).min).max(dim=1).values
        return self.dense(torch.tanh(most + self.bias) * is_word.any(dim=1))


class CosineNetwork(nn.Module):
    """The cosine of a tower's vectors of two texts."""

    def __init__(self, tower: DenseTower, out: PairCosine) -> None:
        super().__init__()
        self.tower, self.out = tower, out

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        words = self.tower.hashing(batch.char)  # [U, size]
        first = unit(self.tower(words, batch.first_text))  # [N, l]
        second = unit(self.tower(words, batch.second_text))  # [M, l]
        return MatchingOutput(self.out(first, second, batch))


class TrigramMatcher(MatchingTask):
    """Base of DSSM and CDSSM, whose loss is `softmax`; the data needs `--data.characters true`."""

    ranking_loss = "softmax"

    def __init__(
        self, hidden_sizes: tuple[int, ...] = (300, 300, 128), num_trigrams: int = 10000, **shared: Any
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hidden_sizes: units of the layers; the last is the size of a text's vector.
            num_trigrams: buckets that letter trigrams are hashed into. The paper counts 30,621 trigrams in 500,000
                words; in small data few are frequent, and each bucket costs time in every step.
        """
        super().__init__(**shared)
        check_sizes(hidden_sizes=hidden_sizes, num_trigrams=num_trigrams)
        self.hidden_sizes, self.num_trigrams = hidden_sizes, num_trigrams

    @abstractmethod
    def make_tower(self, spec: MatchingSpec) -> DenseTower:
        """Make the encoder of a text."""

    @override
    def check_data(self, data: MatchingDataModule) -> None:
        super().check_data(data)
        needs = f"{type(self).__name__} reads the letters of words: set"
        if data.options.tokenizer not in WORD_TOKENIZERS:
            raise InputError(f"{needs} --data.tokenizer to words or whitespace")
        if not data.options.characters:
            raise InputError(f"{needs} --data.characters true")

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name.endswith(".hashing.table"):
            return numbered(range(len(weight)), data.vocabulary["characters"])
        return super().row_names(name, weight, data)

    @override
    def build_network(self, given: Given[MatchingSpec]) -> CosineNetwork:
        spec = given.spec
        out = PairCosine(FIRST_SCALE, spec.num_outputs, self.has_bias(spec))
        return CosineNetwork(self.make_tower(spec), out)


class DSSM(TrigramMatcher):
    """The paper's model."""

    @override
    def make_tower(self, spec: MatchingSpec) -> BagTower:
        return BagTower(spec.num_chars, self.num_trigrams, self.hidden_sizes)


class CDSSM(TrigramMatcher):
    """The paper's model."""

    def __init__(self, window: int = 3, hidden_sizes: tuple[int, ...] = (300, 128), **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            window: words that a convolution reads.
            hidden_sizes: units of the convolution, and of the layers above; the last is the size of a text's vector.
        """
        super().__init__(hidden_sizes=hidden_sizes, **shared)
        check_sizes(window=window)
        self.window = window

    @override
    def make_tower(self, spec: MatchingSpec) -> WindowTower:
        return WindowTower(spec.num_chars, self.num_trigrams, self.window, self.hidden_sizes)


class RetrievalDSSM(TrigramRetrieval):
    """DSSM as an encoder of queries and documents."""

    def __init__(self, hidden_sizes: tuple[int, ...] = (288, 96), **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hidden_sizes: units of the first layer and of those above it; the last is the size of an embedding.
        """
        super().__init__(**shared)
        check_sizes(hidden_sizes=hidden_sizes)
        self.hidden_sizes = hidden_sizes

    @override
    def make_tower(self, spec: ClickSpec) -> DenseTower:
        return BagTower(spec.num_chars, self.trigrams(spec), self.hidden_sizes)


class RetrievalCLSM(RetrievalDSSM):
    """CDSSM as an encoder of queries and documents."""

    def __init__(self, window: int = 3, **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            window: words that a convolution reads.
        """
        super().__init__(**shared)
        check_sizes(window=window)
        self.window = window

    @override
    def make_tower(self, spec: ClickSpec) -> DenseTower:
        return WindowTower(spec.num_chars, self.trigrams(spec), self.window, self.hidden_sizes)
