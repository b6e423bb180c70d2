"""What the retrieval models have in common that read words by their letter trigrams, with a tower a side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClickSpec
from datamodules.core.errors import InputError
from zoo.layers.dual_encoder import DualEncoder, Tower
from zoo.tasks.base import check_sizes
from zoo.tasks.retrieval.task import RetrievalTask
from zoo.training.warm_start import numbered


class TrigramRetrieval(RetrievalTask):
    """Base of the models with two towers over letter trigrams."""

    def __init__(
        self, num_trigrams: int | None = None, tied: bool = True, word_dropout: float = 0.2, **shared: Any
    ) -> None:
        """Choose what both towers share.

        Args:
            num_trigrams: buckets that letter trigrams are hashed into, each with the first layer's weights; None = each
                trigram of the training texts has its own, as in the paper, and others count nothing.
            tied: one network for queries and documents; the paper has one each.
            word_dropout: probability that a word of a text is left out in training; the paper has 0.
            **shared: options of `RetrievalTask` and `Task`.
        """
        super().__init__(**shared)
        if num_trigrams is not None:
            check_sizes(self.options, "num_trigrams")
        if not 0 <= word_dropout < 1:
            raise InputError(f"model.word_dropout={word_dropout}: must be at least 0 and below 1")

    def trigrams(self, spec: ClickSpec) -> int | list[int]:
        """What a `TrigramLayer` has rows for."""
        buckets: int | None = self.options.num_trigrams
        return spec.trigrams if buckets is None else buckets

    @abstractmethod
    def make_tower(self, spec: ClickSpec) -> Tower:
        """The encoder of a side's texts."""

    @override
    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        super().check_data(data)
        if not data.options.characters:
            raise InputError(
                f"{type(self).__name__} reads the letters of words: leave out --data.characters false"
            )

    @property
    @override
    def vector_size(self) -> int:
        size: int = self.network.query.size
        return size

    @override
    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        if name.endswith(".hashing.table"):
            trigrams = range(len(weight)) if self.options.num_trigrams else data.get("trigrams", [])
            return numbered(trigrams, data["vocabulary"]["characters"])
        return super().row_names(name, weight, data)

    @override
    def build_network(
        self, spec: ClickSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> DualEncoder:
        # Word vectors are not read.
        query = self.make_tower(spec)
        document = query if self.options.tied else self.make_tower(spec)
        return DualEncoder(query, document, self.options.word_dropout)
