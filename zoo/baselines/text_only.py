"""What the classifiers share that read a text and no memories: its vector, and a linear layer on it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.errors import InputError
from datamodules.text.tokenization import CHARACTERS
from zoo.tasks.classification.task import ClassificationOutput, ClassificationTask


class TextNetwork(nn.Module):
    """Makes a text's vector, which is all that it is classified by."""

    def __init__(self, size: int, num_classes: int, dropout: float = 0.0) -> None:
        """Make the linear layer.

        Args:
            size: l, numbers in a text's vector.
            num_classes: C.
            dropout: probability of zeroing a component of a text's vector in training.
        """
        super().__init__()
        self.size = size
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(size, num_classes)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The texts' vectors [B, l]."""
        raise NotImplementedError

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes."""
        vectors = self.encode_texts(batch)
        # Scores are float32 whatever the precision.
        with torch.autocast(vectors.device.type, enabled=False):
            logits = self.classifier(self.dropout(vectors.float()))
        return ClassificationOutput(logits, torch.zeros_like(batch.memory_score))


class TextOnly(ClassificationTask):
    """Base of the classifiers with a `TextNetwork`."""

    network: Any

    @property
    @override
    def uses_memory(self) -> bool:
        return False

    @property
    @override
    def vector_size(self) -> int:
        return int(self.network.size)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        vectors: Tensor = self.network.encode_texts(batch)
        return vectors


class CharactersOnly(TextOnly):
    """Base of those that read a text as its characters: the words of the data's vocabulary are characters then."""

    @classmethod
    @override
    def example_spec(cls) -> tuple[ClassificationSpec, str]:
        spec, _ = super().example_spec()
        # Beside padding and the unknown one.
        return spec._replace(num_words=72), "70 characters and 4 classes"

    @override
    def row_names(self, name: str, weight: Tensor, data: Mapping[str, Any]) -> Sequence[Hashable] | None:
        if name == "network.characters.weight":
            return data["vocabulary"]["words"] or ()
        return super().row_names(name, weight, data)

    @override
    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        # Characters as tokens.
        super().check_data(data)
        if data.options.tokenizer != CHARACTERS:
            raise InputError(
                f"{type(self).__name__} reads characters, but data.tokenizer={data.options.tokenizer}: set"
                f" --data.tokenizer {CHARACTERS}, and --data.max_length to the characters kept of a text"
            )
