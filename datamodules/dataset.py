"""Plans of prepared tables, whose parts are cache folders that every process maps; datasets, which build batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, Protocol, SupportsIndex, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset
from typing_extensions import Self

from datamodules.batch import BatchContents, TextBatch
from datamodules.core.errors import DamagedError
from datamodules.core.storage import Part, read_checked
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.rows import Texts
from datamodules.duplicates import DuplicateMarks
from datamodules.text.encodings import Encodings
from datamodules.text.gather import TokenTable, gather_texts

BatchT_co = TypeVar("BatchT_co", covariant=True)


class RowTable(Protocol):
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
    #: split -> `source` and `parts`, see `PreparedSplit.open`.
    splits: dict[str, PlainDict] = field(default_factory=dict)
    #: None where no training table was read.
    vocabulary: Part | None = None
    #: see `DataModule.learn`.
    facts: PlainDict = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Plan | None:
        """The plan in a file; None where there is none, or a damaged one."""
        try:
            return cls(**read_checked(file, "it is made again"))
        except (OSError, DamagedError):
            return None


@dataclass(frozen=True, kw_only=True)
class PreparedSplit:
    """One table, ready for batches. Each field is a part, a cache folder, which the class of the field maps."""

    #: arguments of `open`; None for rows that were prepared in memory (prediction).
    origin: tuple[Path, Mapping[str, Part], str] | None = None
    #: the rows that have duplicates elsewhere; None where nothing is compared.
    duplicates: DuplicateMarks | None = None

    @classmethod
    def open(cls, cache: Path, parts: Mapping[str, Part], source: str) -> Self:
        """Map a prepared table by its parts; raises an `InputError` if one is missing or damaged.

        `source` is the user's table, for messages.
        """
        kinds, fields = get_type_hints(cls), PlainDict()
        for name, (folder, fingerprint) in parts.items():
            kind, *_ = get_args(kinds[name]) or (kinds[name],)  # of an optional part, its class
            part = kind.open(cache / folder, fingerprint)
            fields[name] = replace(part, source=source) if hasattr(part, "source") else part
        return cls(origin=(cache, parts, source), **fields)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        # A worker that is spawned (not forked) receives its dataset pickled: it maps the same files.
        if self.origin is None:
            return super().__reduce_ex__(protocol)
        return type(self).open, self.origin


class BatchDataset(Dataset[BatchT_co], ABC, Generic[BatchT_co]):
    """Row numbers in, a finished batch out."""

    #: whether rows, and so their lengths, are drawn again in every epoch; see `LengthBucketSampler`.
    is_redrawn: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> BatchT_co:
        """Build a batch; index ~i (negative) is row i as padding, with weight 0."""

    @abstractmethod
    def lengths(self, epoch: int = 0) -> NDArray[np.int64]:
        """Number of words of each row [n], as kept."""

    def messages(self) -> Iterable[Message]:
        """Warnings about the rows, logged when they are loaded."""
        return ()

    def batches(self, batch_size: int, rows: int | NDArray[np.int64] | None = None) -> Iterator[BatchT_co]:
        """All rows, the first ones, or those with these numbers, in batches of consecutive rows."""
        if not isinstance(rows, np.ndarray):
            rows = np.arange(len(self) if rows is None else min(rows, len(self)))
        for start in range(0, len(rows), batch_size):
            yield self.__getitems__(rows[start : start + batch_size])


class Side(NamedTuple):
    """One of the two kinds of texts of a split, in the vocabulary in use."""

    texts: Texts
    tokens: TokenTable
    contents: BatchContents

    @property
    def encodings(self) -> Encodings | None:
        """Vectors of the texts by a frozen encoder; None where the model encodes."""
        encoded, store = self.contents.encoded_texts or {}, self.tokens.store
        return encoded.get((store.part[1], self.tokens.length)) if store.is_kept else None

    def strings(self, rows: NDArray[np.int64]) -> list[str] | None:
        """Some of the texts as strings; None where the model reads none."""
        return self.texts.take(rows) if self.contents.strings else None

    def batch(self, rows: NDArray[np.int64]) -> TextBatch:
        """Gather some of the texts alone, for an encoder."""
        return gather_texts(self.tokens, rows)._replace(string=self.strings(rows))


def rows_and_weights(
    indices: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The rows of the indices of a batch [B], and their weights [B]: 0 for padding."""
    given = np.asarray(indices, np.int64)
    return np.where(given < 0, ~given, given), (given >= 0).astype(np.float32)
