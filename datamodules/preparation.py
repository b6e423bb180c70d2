"""The plan of a preparation, and the parts that it is made of: the tables to read, and the contents of files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from numpy.typing import ArrayLike
from typing_extensions import Self

from datamodules.core import storage
from datamodules.core.errors import DamagedError
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.readers import HUB, hub_fingerprint
from datamodules.retrieval import contents_of_memory, is_memory


class Table(Protocol):
    """A table as it is read."""

    @property
    def source(self) -> str:
        """Name for messages."""

    def __len__(self) -> int: ...

    def select(self, row_numbers: ArrayLike, /) -> Self:
        """The rows with these numbers, in the order given."""


@dataclass
class Plan:
    """The folders that were prepared; plain values, written for the other ranks."""

    #: see `Memory.location`.
    memory: str | None
    #: keys of the training rows, see `encode_keys`.
    seen: str | None
    #: split -> `source` and `parts` of its `Origin`.
    splits: dict[str, PlainDict] = field(default_factory=dict)
    #: None where no training table was read.
    vocabulary: storage.Part | None = None
    #: see `DataModule.learn`.
    facts: PlainDict = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Plan | None:
        """The plan in a file; None where there is none, or a damaged one."""
        try:
            return cls(**storage.read_checked(file, "it is made again"))
        except (OSError, DamagedError):
            return None


def contents_of_files(names: object) -> object:
    """Identify the contents of a file, a folder, a Hub dataset, or a list of them; None for anything else."""
    if isinstance(names, (list, tuple)):
        return [contents_of_files(name) for name in names]
    if not isinstance(names, str):
        return None
    if names.startswith(HUB):
        return hub_fingerprint(names)
    return contents_of_memory(names) if is_memory(names) else storage.contents_of(names)
