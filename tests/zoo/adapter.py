"""Base of the adapters, by which the shared tests of `test_models.py` use a kind of task; see `tests.zoo.adapters`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from datamodules.base import DataModule
from datamodules.batch import BatchContents
from tests.datamodules.kinds import prepared
from zoo.tasks.base import Task

#: name of a variant -> constructor arguments.
Variants = dict[str, dict[str, Any]]
#: The tests pass the texts to all models, though few read them.
STRINGS = BatchContents(strings=True)


class Adapter(ABC):
    """One kind of task, or one goal of it."""

    #: number of examples of a split in the batch.
    examples: ClassVar[int]
    #: fields whose last dimension has padding.
    padding: ClassVar[tuple[str, ...]]
    #: model -> its variants.
    variants: ClassVar[dict[str, Variants]]

    def __init__(self, folder: Path) -> None:
        self.data = prepared(self.make_data(folder))
        self.batch = self.make_batch()

    @abstractmethod
    def make_data(self, folder: Path) -> DataModule:
        """A data module of a table of a few made-up texts, not prepared yet."""

    def make_batch(self) -> Any:
        return self.data.dataset(self.data.split("train"), STRINGS).__getitems__(range(self.examples))

    @abstractmethod
    def results(self, model: Task, batch: Any) -> Tensor:
        """The outputs of the model for each row of the batch, [rows, ...]."""

    def loss(self, model: Any, batch: Any) -> Tensor:
        terms: Tensor = model.loss_terms(model(batch), batch)
        return terms.mean()

    @abstractmethod
    def is_learned(self, model: Task, batch: Any) -> bool:
        """Whether the model is right for the whole batch."""

    def learnable(self, batch: Any) -> Any:
        """The batch without rows from which some models could learn nothing."""
        return batch

    def padded(self, batch: Any) -> Any:
        """The batch with more padding of words and of texts."""
        wider = {name: functional.pad(getattr(batch, name), (0, 3)) for name in self.padding}
        return batch._replace(**wider)

    def hidden(self, batch: Any) -> list[Any]:
        """Batches that differ behind masks only."""
        return []

    @abstractmethod
    def alone(self, batch: Any, row: int) -> Any:
        """The batch that holds one row only."""

    @abstractmethod
    def reordered(self, batch: Any) -> list[tuple[Any, Tensor]]:
        """The batch in other orders, with the former row of each of its rows."""

    @abstractmethod
    def emptied(self, batch: Any) -> list[tuple[Any, Tensor]]:
        """The batch with empty texts or memories, with the rows whose outputs must not change."""


def take_rows(batch: Any, fields: Sequence[str], rows: Any) -> Any:
    """The batch with some rows of some fields, tensors or lists of strings."""
    numbers = torch.arange(len(batch.row))[rows].tolist() if fields and len(batch.row) else []
    taken: dict[str, Any] = {}
    for name in fields:
        value = getattr(batch, name)
        taken[name] = value[rows] if isinstance(value, Tensor) else [value[number] for number in numbers]
    return batch._replace(**taken)


def with_words_of(batch: Any, by_word: Sequence[str], **rows: Tensor) -> Any:
    """The batch with one text of each of these sides, without padding and without words that the texts lack."""
    texts = {f"{side}_text": getattr(batch, f"{side}_text")[row][None] for side, row in rows.items()}
    strings = {f"{side}_string": [getattr(batch, f"{side}_string")[row]] for side, row in rows.items()}
    cut = {name: text[:, : max(1, int((text != 0).sum()))] for name, text in texts.items()}
    words = torch.unique(torch.cat([torch.zeros(1, dtype=torch.long), *(text[0] for text in cut.values())]))
    number = torch.zeros(len(batch.word), dtype=torch.long)
    number[words] = torch.arange(len(words))
    kept = {name: getattr(batch, name)[words] for name in by_word}
    kept["char"] = kept["char"][:, : max(1, int((kept["char"] != 0).sum(dim=1).max()))]
    return batch._replace(**kept, **strings, **{name: number[text] for name, text in cut.items()})


def renamed(batch: Any, by_word: Sequence[str], by_text: Sequence[str]) -> Any:
    """The batch with its words in another order, of which the first is padding."""
    order = 1 + torch.randperm(len(batch.word) - 1, generator=torch.Generator().manual_seed(2))
    words = torch.cat([torch.zeros(1, dtype=torch.long), order])
    moved = {name: getattr(batch, name)[words] for name in by_word}
    return batch._replace(**moved, **{name: words.argsort()[getattr(batch, name)] for name in by_text})
