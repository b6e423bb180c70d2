"""The base class of retrievers whose index is a folder of files on the local disk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.errors import InputError
from datamodules.retrieval.base import Collection, Retriever

#: The arrays of an index.
Index = TypeVar("Index")


class FolderRetriever(Retriever, Generic[Index]):
    """Builds an index in a folder, completely or not at all, and maps its files."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._source: tuple[Path, str] | None = None
        self._index: Index | None = None

    @abstractmethod
    def _build(self, texts: Sequence[str], folder: Path, old: tuple[Index, NDArray[np.int64]] | None) -> None:
        """Write the index of the texts into an empty folder; `old` is an index and, for each text, its row or -1."""

    @abstractmethod
    def _map(self, folder: Path) -> Index:
        """Map the files of a complete folder."""

    def index(self, collection: Collection, folder: Path) -> None:
        """See `Retriever.index`."""
        self._forget()
        with storage.lock(folder), storage.new_folder(folder, collection.fingerprint) as partial:
            self._build(collection.texts, partial, None)
        self.open(folder, collection.fingerprint)

    def update(self, collection: Collection, known: NDArray[np.int64], folder: Path) -> None:
        """See `Retriever.update`."""
        old = self._opened()
        with storage.lock(folder), storage.new_folder(folder, collection.fingerprint) as partial:
            self._build(collection.texts, partial, (old, known))

    def open(self, folder: Path, fingerprint: str) -> None:
        """See `Retriever.open`."""
        self._forget()
        storage.check_folder(folder, fingerprint, contents=True)
        self._index = self._map(folder)
        self._source = folder, fingerprint

    def _opened(self) -> Index:
        if self._index is None:
            if self._source is None:
                raise InputError("the retriever has no index: call index() or open() first")
            # Unpickled: the process that opened the index has compared the checksums.
            storage.check_folder(*self._source)
            self._index = self._map(self._source[0])
        return self._index

    def close(self) -> None:
        """See `Retriever.close`."""
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_index": None}
