"""Base of the retrieval models that read words by their letter trigrams, with one tower per side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from datamodules.batch import ClickSpec
from datamodules.clickthrough.datamodule import ClickthroughDataModule
from datamodules.core.errors import InputError
from datamodules.state import DataState
from zoo.layers.dual_encoder import DualEncoder, Tower
from zoo.tasks.base import check_probability, check_sizes
from zoo.tasks.model import Given
from zoo.tasks.retrieval.task import RetrievalTask
from zoo.training.warm_start import numbered


class TrigramRetrieval(RetrievalTask):
    """Base of the models with two towers over letter trigrams."""

    def __init__(
        self, num_trigrams: int | None = None, tied: bool = True, word_dropout: float = 0.2, **shared: Any
    ) -> None:
        """Choose the common parts of both towers.

        Args:
            num_trigrams: buckets that letter trigrams are hashed into; None = as in the paper, each trigram of the
                training texts has its own weights, and others are ignored.
            tied: one network for queries and documents; the paper has two.
            word_dropout: probability of dropping a word of a text in training; the paper has 0.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        if num_trigrams is not None:
            check_sizes(num_trigrams=num_trigrams)
        check_probability(word_dropout=word_dropout)
        self.num_trigrams, self.tied, self.word_dropout = num_trigrams, tied, word_dropout

    def trigrams(self, spec: ClickSpec) -> int | list[int]:
        """The rows of a `TrigramLayer`: a number of buckets, or trigrams."""
        return spec.trigrams if self.num_trigrams is None else self.num_trigrams

    @abstractmethod
    def make_tower(self, spec: ClickSpec) -> Tower:
        """Make the encoder of the texts of one side."""

    @override
    def check_data(self, data: ClickthroughDataModule) -> None:
        super().check_data(data)
        if not data.options.characters:
            raise InputError(
                f"{type(self).__name__} reads the letters of words: omit --data.characters false"
            )

    @property
    @override
    def vector_size(self) -> int:
        size: int = self.network.query.size
        return size

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name.endswith(".hashing.table"):
            trigrams = range(len(weight)) if self.num_trigrams else data.facts.get("trigrams", [])
            return numbered(trigrams, data.vocabulary["characters"])
        return super().row_names(name, weight, data)

    @override
    def build_network(self, given: Given[ClickSpec]) -> DualEncoder:
        query = self.make_tower(given.spec)
        document = query if self.tied else self.make_tower(given.spec)
        return DualEncoder(query, document, self.word_dropout)
