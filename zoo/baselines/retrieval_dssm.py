"""DSSM and CLSM with the sizes that LSTM-RNN is compared with; see `zoo.baselines.dssm` for the networks.

Hamid Palangi et al.: "Deep Sentence Embedding Using Long Short-Term Memory Networks: Analysis and Application to
Information Retrieval", 2016, Table IV. CLSM is the other name of CDSSM.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from datamodules.batch import ClickSpec
from datamodules.core.errors import InputError
from zoo.baselines.dssm import BagTower, WindowTower
from zoo.layers.trigrams import TrigramLayer
from zoo.tasks.base import check_sizes
from zoo.tasks.retrieval.trigram_task import TrigramRetrieval


class TrigramTowers(TrigramRetrieval):
    """What both have in common."""

    def __init__(
        self, hidden_sizes: tuple[int, ...] = (288, 96), dropout: float = 0.0, **shared: Any
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hidden_sizes: units of the first layer and of those above it; the last is the size of an embedding.
            dropout: between the layers; the paper has none.
            **shared: options of `TrigramRetrieval`, `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "hidden_sizes")
        if not 0 <= dropout < 1:
            raise InputError(f"model.dropout={dropout}: must be at least 0 and below 1")


class RetrievalDSSM(TrigramTowers):
    """A multilayer perceptron over the sum of a text's trigram counts.

    Example:
        >>> model = RetrievalDSSM(hidden_sizes=(288, 96))
    """

    paper = (
        "Huang et al.: Learning Deep Structured Semantic Models for Web Search using Clickthrough Data (2013)"
    )

    @override
    def make_tower(self, spec: ClickSpec) -> BagTower:
        options = self.options
        size = options.hidden_sizes[0]
        hashing = TrigramLayer(spec.num_chars, self.trigrams(spec), size, size)
        return BagTower(hashing, tuple(options.hidden_sizes), options.dropout)


class RetrievalCLSM(TrigramTowers):
    """A convolution over windows of words, the maximum over time, and a dense layer.

    Example:
        >>> model = RetrievalCLSM(window=3, hidden_sizes=(288, 96))
    """

    paper = "Shen et al.: A Latent Semantic Model with Convolutional-Pooling Structure for IR (2014)"

    def __init__(self, window: int = 3, **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            window: words that a convolution reads.
            **shared: options of `TrigramTowers`, `TrigramRetrieval`, `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "window")

    @override
    def make_tower(self, spec: ClickSpec) -> WindowTower:
        options = self.options
        size, window = options.hidden_sizes[0], options.window
        hashing = TrigramLayer(spec.num_chars, self.trigrams(spec), window * size, size)
        return WindowTower(hashing, window, tuple(options.hidden_sizes), options.dropout)
