"""A memory: texts with labels that a model can retrieve, and the index that searches them; neighbors, stored once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter
from datamodules.core.progress import progress_bar
from datamodules.corpora.rows import Rows, StoredTable
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.folding import FOLDING, fold_hashes

#: Texts whose neighbors are searched and written together.
BLOCK = 8192


@dataclass(frozen=True, eq=False)
class Neighbors(StoredTable):
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
    #: rows of the memory that got the label of an added row with their text; see `FolderMemory.add`.
    relabelled: int = 0

    def describe(self) -> str:
        """Return the version and the numbers of rows in a line."""
        facts = [
            (self.conflicting, "with the text of a memory with another label"),
            (self.duplicates, "duplicates skipped"),
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
        self, texts: Sequence[str], k: int, exclude_duplicates: bool = False, own_ids: list[str] | None = None
    ) -> Neighbors:
        """Retrieve at most k memories for each of n texts, with `exclude_duplicates` none of its duplicates.

        Own ids are those of texts that are rows of the memory's table: then the duplicates of these rows, which may
        have other texts in the memory, are excluded, too.
        """

    def has_duplicates_of(self, texts: Rows, same_table: bool, neighbors: Neighbors) -> NDArray[np.bool_]:
        """Return whether the memory contains a duplicate of each of n texts, bool [n]: here, among their neighbors.

        With `same_table`, the texts are rows of the memory's table: rows with equal ids are duplicates, too.
        """
        # Row -1 (no memory) reads the appended hash.
        hashes = np.append(fold_hashes(neighbors.memories.texts), np.uint64(0))
        is_duplicate = hashes[neighbors.rows] == fold_hashes(texts.texts)[:, None]
        return (is_duplicate & (neighbors.rows >= 0)).any(axis=1)

    def check_unchanged(self) -> None:
        """Raise an `InputError` if the memory, which is then an existing index, has changed since it was opened."""
        return

    @abstractmethod
    def labels(self) -> list[str]:
        """Return the distinct labels, sorted; empty if the memory has none."""

    @abstractmethod
    def location(self) -> str:
        """Return the folder, or `index:NAME`, that `open_memory` opens. Contains no secret."""


def build_neighbors(
    texts: Rows, memory: Memory, k: int, exclude_duplicates: bool, cache: Path, same_table: bool = False
) -> storage.Part:
    """Store the k memories of every text in a folder of the cache; `same_table` excludes equal ids, too."""
    description = {
        "texts": texts.fingerprint,
        "memory": memory.fingerprint,
        "back end": type(memory.retriever).__name__,
        "k": k,
        "excluded": exclude_duplicates and [FOLDING, same_table],
    }
    own_ids = texts.ids if exclude_duplicates and same_table else None

    def search(block: slice) -> Neighbors:
        return memory.search(texts.texts[block], k, exclude_duplicates, own_ids and own_ids[block])

    def save(folder: Path) -> None:
        _write(folder, search, len(texts), k)
        memory.check_unchanged()

    return storage.prepared_folder(cache, "neighbors", storage.fingerprint_of(description), save)


def _write(folder: Path, search: Callable[[slice], Neighbors], total: int, k: int) -> None:
    """Write the neighbors of all rows, with each distinct memory once; one block is in memory at a time."""
    number_of: dict[str, int] = {}
    with (
        ArrayWriter(folder / "rows.npy", np.int32, (k,)) as rows,
        ArrayWriter(folder / "scores.npy", np.float32, (k,)) as scores,
        Rows.writer(folder / "memories.arrow") as write,
        progress_bar(total=total, desc="retrieving memories") as bar,
    ):
        for start in range(0, total, BLOCK):
            neighbors = search(slice(start, min(start + BLOCK, total)))
            before = len(number_of)
            ids = neighbors.memories.ids
            numbers = np.array([number_of.setdefault(name, len(number_of)) for name in ids], np.int32)
            write(neighbors.memories.select(np.flatnonzero(numbers >= before)))
            # A row -1 (no memory) reads the appended -1.
            rows.write(np.append(numbers, np.int32(-1))[neighbors.rows])
            scores.write(neighbors.scores)
            bar.update(len(neighbors.rows))
