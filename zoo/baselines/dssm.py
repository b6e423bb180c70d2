"""Deep structured semantic models over letter trigrams.

DSSM: Po-Sen Huang, Xiaodong He, Jianfeng Gao, Li Deng, Alex Acero, Larry Heck: "Learning Deep Structured
Semantic Models for Web Search using Clickthrough Data", CIKM 2013.
CDSSM: Yelong Shen, Xiaodong He, Jianfeng Gao, Li Deng, Gregoire Mesnil: "A Latent Semantic Model with
Convolutional-Pooling Structure for Information Retrieval", CIKM 2014 (also called CLSM).

Word hashing turns a word into the counts of its letter trigrams: `cat` with marks around it, `#cat#`, has
#ca, cat and at#. DSSM adds up a text's words and feeds them to an MLP; CDSSM runs a convolution over windows
of words and takes the maximum over time. The score is the cosine of two such vectors.

The first layer multiplies a sparse count vector of tens of thousands of trigrams: it is a sum of table rows,
made once for each distinct word of a batch, and the counts never exist.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.text.tokenization import WORD_TOKENIZERS
from zoo.baselines.convolution import window_sum
from zoo.layers.dual_encoder import Tower
from zoo.layers.interactions import ScaledCosine, unit
from zoo.layers.trigrams import TrigramLayer
from zoo.tasks.base import check_sizes
from zoo.tasks.matching.task import MatchingOutput, MatchingTask
from zoo.training.warm_start import numbered


class BagTower(Tower):
    """DSSM: the MLP over the sum of a text's trigram counts."""

    def __init__(self, hashing: TrigramLayer, hidden_sizes: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.hashing = hashing
        self.bias = nn.Parameter(torch.zeros(hidden_sizes[0]))
        self.layers = _dense_layers(hidden_sizes)
        self.size = hidden_sizes[-1]
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """See `Tower.forward`."""
        # Row 0 is padding, and a bag of it alone is zero.
        summed = functional.embedding_bag(text, words, mode="sum", padding_idx=0)
        state = torch.tanh(summed + self.bias)
        for layer in self.layers:
            state = torch.tanh(layer(self.dropout(state)))
        return state


class WindowTower(Tower):
    """CDSSM: a convolution over windows of words, the maximum over time, and a dense layer."""

    def __init__(
        self, hashing: TrigramLayer, window: int, hidden_sizes: tuple[int, ...], dropout: float
    ) -> None:
        super().__init__()
        self.hashing = hashing
        self.window = window
        self.bias = nn.Parameter(torch.zeros(hidden_sizes[0]))
        self.layers = _dense_layers(hidden_sizes)
        self.size = hidden_sizes[-1]
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, text: Tensor) -> Tensor:
        """See `Tower.forward`."""
        places = words.view(len(words), self.window, -1)
        sums = window_sum(places, text)  # [N, T, F]
        real = (text != 0).unsqueeze(2)
        # Bias and tanh keep the order: taking the maximum before them saves them at all words but one.
        most = sums.masked_fill(~real, torch.finfo(sums.dtype).min).max(dim=1).values
        state = torch.tanh(most + self.bias) * real.any(dim=1)
        for layer in self.layers:
            state = torch.tanh(layer(self.dropout(state)))
        return state


def _dense_layers(sizes: tuple[int, ...]) -> nn.ModuleList:
    layers = [nn.Linear(before, size) for before, size in itertools.pairwise(sizes)]
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.ModuleList(layers)


class CosineNetwork(nn.Module):
    """Two towers and the cosine of what they say."""

    def __init__(
        self,
        first: BagTower | WindowTower,
        second: BagTower | WindowTower,
        smoothing: float,
        num_outputs: int,
        bias: bool,
    ) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.out = ScaledCosine(smoothing, num_outputs, bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        words = self.first.hashing(batch.char)  # [U, size]
        first = unit(self.first(words, batch.first_text))  # [N, l]
        if self.second is not self.first:
            words = self.second.hashing(batch.char)
        second = unit(self.second(words, batch.second_text))  # [M, l]
        cosine = (first.index_select(0, batch.first) * second.index_select(0, batch.second)).sum(dim=1)
        return MatchingOutput(self.out(cosine))


class TrigramMatcher(MatchingTask):
    """What DSSM and CDSSM have in common."""

    ranking_loss = "softmax"

    def __init__(
        self,
        num_trigrams: int = 10000,
        share: bool = True,
        smoothing: float = 10.0,
        dropout: float = 0.0,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            num_trigrams: buckets that letter trigrams are hashed into, each with the first layer's weights. The
                paper counts 30,621 trigrams in 500,000 words; in small data few are frequent, and each bucket
                costs time in every step.
            share: one network for both texts.
            smoothing: initial factor of the cosine (the paper's gamma), which is trained.
            dropout: between the layers; the paper has none.
            **shared: options of `MatchingTask` (the paper's loss is `softmax`) and `Task`.
        """
        super().__init__(**shared)
        for name in ("num_trigrams", "smoothing"):
            if not self.options[name] > 0:
                raise InputError(f"model.{name}={self.options[name]}: must be above 0")

    @abstractmethod
    def make_tower(self, spec: MatchingSpec) -> BagTower | WindowTower:
        """The encoder of a text."""

    @override
    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        # Words' letters.
        super().check_data(data)
        name, tokenizer = type(self).__name__, data.options.tokenizer
        if tokenizer not in WORD_TOKENIZERS:
            raise InputError(
                f"{name} reads the letters of words, which data.tokenizer={tokenizer} does not keep: use words or"
                " whitespace"
            )
        if not data.options.characters:
            raise InputError(f"{name} reads the letters of words: set --data.characters true")

    @override
    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        if name.endswith(".hashing.table"):
            return numbered(range(len(weight)), data["vocabulary"]["characters"])
        return super().row_names(name, weight, data)

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> CosineNetwork:
        # Two towers, or one for both texts. Word vectors are not read.
        options = self.options
        first = self.make_tower(spec)
        second = first if options.share else self.make_tower(spec)
        return CosineNetwork(
            first, second, options.smoothing, spec.num_outputs, bias=self.sees_constants(spec)
        )


class DSSM(TrigramMatcher):
    """The paper's model. Give the data `--data.characters true`.

    Example:
        >>> model = DSSM(hidden_sizes=(300, 300, 128))
    """

    paper = (
        "Huang et al.: Learning Deep Structured Semantic Models for Web Search using Clickthrough Data (2013)"
    )

    def __init__(self, hidden_sizes: tuple[int, ...] = (300, 300, 128), **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hidden_sizes: units of the layers over the counts; the last is the size of a text's vector.
            **shared: options of `TrigramMatcher`, `MatchingTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "hidden_sizes")

    @override
    def make_tower(self, spec: MatchingSpec) -> BagTower:
        options = self.options
        size = options.hidden_sizes[0]
        hashing = TrigramLayer(spec.num_chars, options.num_trigrams, size, size)
        return BagTower(hashing, tuple(options.hidden_sizes), options.dropout)


class CDSSM(TrigramMatcher):
    """The paper's model. Give the data `--data.characters true`.

    Example:
        >>> model = CDSSM(window=3, hidden_sizes=(300, 128))
    """

    paper = "Shen et al.: A Latent Semantic Model with Convolutional-Pooling Structure for IR (2014)"

    def __init__(self, window: int = 3, hidden_sizes: tuple[int, ...] = (300, 128), **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            window: words that a convolution reads.
            hidden_sizes: units of the convolution, and of the layers over the maximum over time; the last is
                the size of a text's vector.
            **shared: options of `TrigramMatcher`, `MatchingTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "window", "hidden_sizes")

    @override
    def make_tower(self, spec: MatchingSpec) -> WindowTower:
        options = self.options
        size, window = options.hidden_sizes[0], options.window
        # A unit's fan-in is the window's trigrams, of which each place has its own columns.
        hashing = TrigramLayer(spec.num_chars, options.num_trigrams, window * size, size)
        return WindowTower(hashing, window, tuple(options.hidden_sizes), options.dropout)
