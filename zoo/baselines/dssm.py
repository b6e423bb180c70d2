"""Deep structured semantic models over letter trigrams, for pairs and for the retrieval from a collection.

DSSM: Po-Sen Huang, Xiaodong He, Jianfeng Gao, Li Deng, Alex Acero, Larry Heck: "Learning Deep Structured Semantic
Models for Web Search using Clickthrough Data", CIKM 2013.
CDSSM: Yelong Shen, Xiaodong He, Jianfeng Gao, Li Deng, Gregoire Mesnil: "A Latent Semantic Model with
Convolutional-Pooling Structure for Information Retrieval", CIKM 2014 (also called CLSM).

The retrieval models have the sizes that LSTM-RNN is compared with: Hamid Palangi et al.: "Deep Sentence Embedding Using
Long Short-Term Memory Networks", 2016, Table IV.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClickSpec, MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.core.types import Size
from datamodules.matching import MatchingDataModule
from datamodules.text.tokenization import WORD_TOKENIZERS
from zoo.baselines.convolution import window_sum
from zoo.layers.dual_encoder import Tower, TrigramLayer
from zoo.layers.interactions import PairCosine, unit
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput
from zoo.tasks.retrieval.task import TrigramRetrieval

#: Initial factor of the cosine of pairs (the papers' gamma), which is trained.
FIRST_SCALE = 10.0


class TrigramTower(Tower):
    """The encoder of a text: a layer over letter trigrams, and dense layers.

    The first layer of DSSM reads the sum of a text's trigram counts; that of CDSSM is a convolution over windows of
    words, with the maximum over time.
    """

    def __init__(
        self, num_chars: int, trigrams: int | list[int], window: int | None, hidden_sizes: Sequence[int]
    ) -> None:
        """Make the layers; without a window (of words), those of DSSM."""
        super().__init__()
        size = hidden_sizes[0]
        # Each position of the window has columns of its own.
        self.hashing = TrigramLayer(num_chars, trigrams, (window or 1) * size, size)
        self.window = window
        self.bias = nn.Parameter(torch.zeros(size))
        layers = [nn.Linear(*sizes) for sizes in pairwise(hidden_sizes)]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.size = hidden_sizes[-1]

    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """See `Tower.forward`."""
        if self.window is None:
            summed = functional.embedding_bag(text, words, mode="sum", padding_idx=0)
            state = torch.tanh(summed + self.bias)
        else:
            sums = window_sum(words.view(len(words), self.window, -1), text)  # [N, T, F]
            is_word = (text != 0).unsqueeze(2)
            # Bias and tanh keep the order: after the maximum, they are computed for one word only.
            most = sums.masked_fill(~is_word, torch.finfo(sums.dtype).min).max(dim=1).values
            state = torch.tanh(most + self.bias) * is_word.any(dim=1)
        for layer in self.layers:
            state = torch.tanh(layer(state))
        return state


class CosineNetwork(nn.Module):
    """The cosine of a tower's vectors of two texts."""

    def __init__(self, given: Given[MatchingSpec], options: DSSM) -> None:
        super().__init__()
        spec, sizes = given.spec, options.hidden_sizes
        self.tower = TrigramTower(spec.num_chars, options.num_trigrams, options.window, sizes)
        self.out = PairCosine(FIRST_SCALE, spec.num_outputs, options.has_bias(spec))

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        words = self.tower.hashing(batch.char)  # [U, size]
        first = unit(self.tower(words, batch.first_text))  # [N, l]
        second = unit(self.tower(words, batch.second_text))  # [M, l]
        return MatchingOutput(self.out(first, second, batch))


class DSSM(MatchingTask):
    """The paper's model, whose loss is `softmax`; the data needs `--data.characters true`.

    Args:
        hidden_sizes: units of the layers; the last is the size of a text's vector.
        num_trigrams: buckets that letter trigrams are hashed into. The paper counts 30,621 trigrams in 500,000
            words; in small data few are frequent, and each bucket costs time in every step.
    """

    ranking_loss = "softmax"
    network_type = CosineNetwork
    #: words that the first layer reads together; None = it reads the whole text.
    window: int | None = None

    def __init__(
        self, hidden_sizes: tuple[Size, ...] = (300, 300, 128), num_trigrams: Size = 10000, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.hidden_sizes, self.num_trigrams = hidden_sizes, num_trigrams

    @override
    def check_data(self, data: MatchingDataModule) -> None:
        super().check_data(data)
        needs = f"{type(self).__name__} reads the letters of words: set"
        if data.options.tokenizer not in WORD_TOKENIZERS:
            raise InputError(f"{needs} --data.tokenizer to words or whitespace")
        if not data.options.characters:
            raise InputError(f"{needs} --data.characters true")


class CDSSM(DSSM):
    """The paper's model; loss and data as those of `DSSM`.

    Args:
        window: words that a convolution reads.
        hidden_sizes: units of the convolution, and of the layers above; the last is the size of a text's vector.
    """

    def __init__(self, window: Size = 3, hidden_sizes: tuple[Size, ...] = (300, 128), **shared: Any) -> None:
        super().__init__(hidden_sizes=hidden_sizes, **shared)
        self.window = window


class RetrievalDSSM(TrigramRetrieval):
    """DSSM as an encoder of queries and documents.

    Args:
        hidden_sizes: units of the first layer and of those above it; the last is the size of an embedding.
    """

    #: words that the first layer reads together; None = it reads the whole text.
    window: int | None = None

    def __init__(self, hidden_sizes: tuple[Size, ...] = (288, 96), **shared: Any) -> None:
        super().__init__(**shared)
        self.hidden_sizes = hidden_sizes

    @override
    def make_tower(self, spec: ClickSpec) -> TrigramTower:
        return TrigramTower(spec.num_chars, self.trigrams(spec), self.window, self.hidden_sizes)


class RetrievalCLSM(RetrievalDSSM):
    """CDSSM as an encoder of queries and documents.

    Args:
        window: words that a convolution reads.
    """

    def __init__(self, window: Size = 3, **shared: Any) -> None:
        super().__init__(**shared)
        self.window = window
