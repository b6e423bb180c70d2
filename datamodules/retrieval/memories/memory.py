"""A memory: texts with labels that a model can retrieve, and the index that searches them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.folding import fold_hashes

UnknownLabels: TypeAlias = Literal["refuse", "skip"]


class Neighbors(NamedTuple):
    """The best k memories of each of n texts, best first."""

    #: int32 [n, k]: rows of `memories`, -1 where there are fewer than k.
    rows: NDArray[np.int32]
    #: float32 [n, k]: retrieval scores, 0 where there is no memory.
    scores: NDArray[np.float32]
    #: the distinct memories that were retrieved, with their texts and labels.
    memories: Rows


class Addition(NamedTuple):
    """The result of `FolderMemory.add`."""

    #: the memory's version; without a new row it is the old one.
    version: int
    rows: int
    added: int
    #: skipped rows: the memory has a duplicate of the text with the same label.
    duplicates: int
    #: new rows whose text the memory has with another label.
    conflicting: int
    #: skipped rows: their label is not among the labels that may be added.
    unknown: int
    #: rows of the memory that got the label of an added row with their text before; see `OpenedMemory.add`.
    relabelled: int = 0

    def describe(self) -> str:
        """Return the version and the numbers of rows in a line."""
        facts = [
            (self.conflicting, "with the text of a memory with another label"),
            (self.duplicates, "duplicates skipped"),
            (self.unknown, "rows with unknown labels skipped"),
            (self.relabelled, "old ones relabelled"),
        ]
        listed = ", ".join(f"{number} {fact}" for number, fact in facts if number)
        new = f"version {self.version}, {self.rows} memories, {self.added} new"
        return f"{new} ({listed})" if listed else new


class Change(NamedTuple):
    """The result of a change of rows that the memory has."""

    #: the memory's version; without a changed row it is the old one.
    version: int
    rows: int
    changed: int

    def describe(self, what: str = "changed") -> str:
        """Return the version and the numbers of rows in a line."""
        return f"version {self.version}, {self.rows} memories, {self.changed} {what}"


class Memory(ABC):
    """Texts with labels, searchable."""

    #: identifies the rows and the ranking: equal fingerprints give equal neighbors.
    fingerprint: str
    retriever: Retriever

    @abstractmethod
    def search(
        self,
        texts: Sequence[str],
        k: int,
        exclude_duplicates: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        """Retrieve at most k memories for each of n texts, with `exclude_duplicates` none of its duplicates.

        Own ids are those of texts that are rows of the memory's table: then the duplicates of these rows, which may
        have other texts in the memory, are excluded, too.
        """

    def contains_duplicates_of(
        self, texts: Rows, same_table: bool, neighbors: Neighbors
    ) -> NDArray[np.bool_]:
        """Return whether the memory contains a duplicate of each of n texts, bool [n]: here, among their neighbors.

        With `same_table`, the texts are rows of the memory's table: rows with equal ids are duplicates, too.
        """
        # Row -1 (no memory) reads the appended hash.
        hashes = np.append(fold_hashes(neighbors.memories.texts), np.uint64(0))
        is_duplicate = hashes[neighbors.rows] == fold_hashes(texts.texts)[:, None]
        contained: NDArray[np.bool_] = (is_duplicate & (neighbors.rows >= 0)).any(axis=1)
        return contained

    def is_only_read(self) -> InputError:
        """The error for a change of an index of the user's."""
        return InputError(f"{self.location()}: this index is only read; change documents with your own tools")

    def check_unchanged(self) -> None:
        """Raise an `InputError` if the memory, which is then an existing index, has changed since it was opened."""
        return

    @abstractmethod
    def labels(self) -> list[str]:
        """Return the distinct labels, sorted; empty if the memory has none."""

    @abstractmethod
    def location(self) -> str:
        """Return the folder, or `index:NAME`, that `open_memory` opens. Contains no secret."""
