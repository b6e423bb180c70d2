"""What the one suite of `test_models.py` asks of a kind of task; see `tests.zoo.adapters` for the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules.base import TextDataModule
from zoo.tasks.base import Task

#: name of a variant -> constructor arguments.
Variants = dict[str, dict[str, Any]]


class Adapter(ABC):
    """One kind of task, or one goal of it."""

    task: ClassVar[type[Task]]
    #: a split's examples that make the batch.
    examples: ClassVar[int]
    #: model -> its variants.
    variants: ClassVar[dict[str, Variants]]

    def __init__(self, folder: Path) -> None:
        self.data = self.make_data(folder)
        self.data.with_strings = True
        self.data.prepare_data()
        self.data.setup("fit")
        self.batch = self.make_batch()

    @abstractmethod
    def make_data(self, folder: Path) -> TextDataModule[Any, Any]:
        """A data module of a table of a few made-up texts, not prepared yet."""

    def make_batch(self) -> Any:
        return self.data.dataset(self.data.split("train")).__getitems__(range(self.examples))

    @abstractmethod
    def results(self, model: Task, batch: Any) -> Tensor:
        """What the model says of each row of the batch, [rows, ...]."""

    @abstractmethod
    def loss(self, model: Task, batch: Any) -> Tensor: ...

    @abstractmethod
    def is_learned(self, model: Task, batch: Any) -> bool:
        """Whether the model is right about the whole batch."""

    def learnable(self, batch: Any) -> Any:
        """The batch without rows from which some models could learn nothing."""
        return batch

    @abstractmethod
    def padded(self, batch: Any) -> Any:
        """More padding: of words, of texts."""

    def hidden(self, batch: Any) -> list[Any]:
        """Batches that differ behind masks only."""
        return []

    @abstractmethod
    def alone(self, batch: Any, row: int) -> Any:
        """The batch that holds one row only."""

    @abstractmethod
    def reordered(self, batch: Any) -> list[tuple[Any, Tensor]]:
        """The batch in other orders, and which row each of its rows was."""

    @abstractmethod
    def emptied(self, batch: Any) -> list[tuple[Any, Tensor]]:
        """The batch with texts, or memories, of nothing; and which rows must not notice."""


def put(batch: Any, fields: Sequence[str], rows: Any) -> Any:
    """The batch with some rows of some fields, tensors or lists of strings."""
    chosen = torch.arange(len(batch.row))[rows].tolist() if fields and len(batch.row) else []
    picked: dict[str, Any] = {}
    for name in fields:
        value = getattr(batch, name)
        picked[name] = value[rows] if isinstance(value, Tensor) else [value[i] for i in chosen]
    return batch._replace(**picked)
