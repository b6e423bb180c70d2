"""Base of the datasets, which build whole batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from datamodules.batch import BatchContents
from datamodules.core.types import Message
from datamodules.corpora.rows import Texts
from datamodules.encodings import Encodings, encodings_of
from datamodules.text.gather import TokenTable

BatchT_co = TypeVar("BatchT_co", covariant=True)


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
        return encodings_of(self.contents.encoded_texts, self.tokens.store, self.tokens.length)

    def strings(self, rows: NDArray[np.int64]) -> list[str] | None:
        """Some of the texts as strings; None where the model reads none."""
        return self.texts.take(rows) if self.contents.strings else None


def rows_and_weights(
    indices: Sequence[int] | NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The rows of the indices of a batch [B], and their weights [B]: 0 for padding."""
    given = np.asarray(indices, np.int64)
    return np.where(given < 0, ~given, given), (given >= 0).astype(np.float32)
