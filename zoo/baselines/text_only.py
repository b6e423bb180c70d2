"""Base of the classifiers that read a text and no memories: a linear layer on the text's vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, TextBatch
from datamodules.core.errors import InputError
from datamodules.state import DataState
from datamodules.text.tokenization import CHARACTERS
from datamodules.text_rows import TextRowsDataModule
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.outputs import ClassificationOutput


class TextNetwork(nn.Module):
    """Encodes texts by vectors of size l, and classifies them by a linear layer with dropout."""

    def __init__(self, size: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = size
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(size, num_classes)

    @abstractmethod
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The texts' vectors [B, l]."""

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes."""
        vectors = self.encode_texts(batch)
        # Scores are float32 in every precision.
        with torch.autocast(vectors.device.type, enabled=False):
            logits = self.classifier(self.dropout(vectors.float()))
        return ClassificationOutput(logits, torch.zeros_like(batch.memory_score), text_vector=vectors)


class TextOnly(ClassificationTask):
    """Base of the classifiers with a `TextNetwork`."""

    uses_memory = False
    network: TextNetwork

    @property
    @override
    def vector_size(self) -> int:
        return self.network.size

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        return self.network.encode_texts(batch)


class CharactersOnly(TextOnly):
    """Base of the classifiers whose words, in the data's vocabulary, are characters."""

    @override
    def row_names(self, name: str, weight: Tensor, data: DataState) -> Sequence[Hashable] | None:
        if name == "network.characters.weight":
            return data.vocabulary["words"] or ()
        return super().row_names(name, weight, data)

    @override
    def check_data(self, data: TextRowsDataModule[Any]) -> None:
        super().check_data(data)
        if data.options.tokenizer != CHARACTERS:
            raise InputError(
                f"{type(self).__name__} reads characters, but data.tokenizer={data.options.tokenizer}: set"
                f" --data.tokenizer {CHARACTERS}, and --data.max_length to the characters kept of a text"
            )
