"""What retrievers share whose index is a folder of files on the local disk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from datamodules.core import storage
from datamodules.core.errors import InputError
from datamodules.retrieval.base import Collection, Retriever


class FolderIndex(Protocol):
    """The arrays of an index."""

    @property
    def num_texts(self) -> int:
        """Texts of the collection."""


Index = TypeVar("Index", bound=FolderIndex)


class FolderRetriever(Retriever, Generic[Index]):
    """Builds an index in a folder, or not at all, and opens it.

    Opening takes milliseconds, processes share the pages, and an object that is pickled carries the folder's
    name only. A build that is killed begins anew. Ids and labels are not kept.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._place: tuple[Path, str] | None = None
        self._index: Index | None = None

    @abstractmethod
    def _build(self, texts: Sequence[str], folder: Path, progress: bool, after: Index | None) -> None:
        """Write the files of an index into an empty folder.

        Args:
            texts: the collection, or what it has more than that of `after`.
            folder: where the files go.
            progress: show a progress bar on standard error.
            after: the index of a collection that the texts are added to; its own texts come first.
        """

    @abstractmethod
    def _map(self, folder: Path) -> Index:
        """Map the files of a whole folder."""

    def index(self, collection: Collection, folder: Path, progress: bool = True) -> None:
        """Build the index in `folder` and open it; see `Retriever.index`."""
        self._forget()
        self._write(collection, collection.texts, folder, progress, None)
        self.open(folder, collection.fingerprint)

    def add(self, collection: Collection, start_row: int, folder: Path, progress: bool = True) -> None:
        """Build the index of a collection that has grown in a folder of its own; see `Retriever.add`."""
        old = self._opened()
        if old.num_texts != start_row:
            raise InputError(
                f"{folder}: the open index has {old.num_texts} texts, but texts from {start_row}"
                " are to be added"
            )
        self._write(collection, collection.texts[start_row:], folder, progress, old)

    def _write(
        self, collection: Collection, texts: Sequence[str], folder: Path, progress: bool, after: Index | None
    ) -> None:
        with storage.lock(folder), storage.new_folder(folder, collection.fingerprint) as partial:
            self._build(texts, partial, progress, after)

    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the index in `folder`; see `Retriever.open`."""
        self._forget()
        storage.check_folder(folder, fingerprint, contents=True)
        self._index = self._map(folder)
        self._place = folder, fingerprint

    def _opened(self) -> Index:
        if self._index is None:
            if self._place is None:
                raise InputError("the retriever has no index: call index() or open() first")
            # After unpickling: the process that opened it has compared the checksums.
            storage.check_folder(*self._place)
            self._index = self._map(self._place[0])
        return self._index

    def close(self) -> None:
        """Let go of the files; `open` may follow."""
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None}
