"""The neighbors of the rows of a table, retrieved once, in blocks, and stored in a folder of the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter
from datamodules.core.progress import progress_bar
from datamodules.corpora.rows import Rows
from datamodules.retrieval.folding import FOLDING
from datamodules.retrieval.memories.memory import Memory, Neighbors

BLOCK = 8192


def open_neighbors(folder: Path, fingerprint: str) -> Neighbors:
    """Map stored neighbors; raise an `InputError` if they are missing, damaged or of another fingerprint."""
    storage.check_folder(folder, fingerprint)
    return Neighbors(
        rows=np.load(folder / "rows.npy", mmap_mode="r"),
        scores=np.load(folder / "scores.npy", mmap_mode="r"),
        memories=Rows.load(folder / "memories.arrow"),
    )


def build_neighbors(
    texts: Rows, memory: Memory, k: int, exclude_duplicates: bool, cache: Path, same_table: bool = False
) -> storage.Part:
    """Store the k memories of every text in a folder of the cache; `same_table` excludes equal ids, too."""
    fingerprint = storage.fingerprint_of(
        {
            "texts": texts.fingerprint,
            "memory": memory.fingerprint,
            "back end": type(memory.retriever).__name__,
            "k": k,
            "excluded": exclude_duplicates and [FOLDING, same_table],
        }
    )
    own_ids = texts.ids if exclude_duplicates and same_table else None

    def search(block: slice) -> Neighbors:
        return memory.search(texts.texts[block], k, exclude_duplicates, own_ids and own_ids[block])

    def save(folder: Path) -> None:
        _write(folder, search, len(texts), k)
        memory.check_unchanged()

    return storage.prepared_folder(cache, "neighbors", fingerprint, save)


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
            numbers = np.array(
                [number_of.setdefault(name, len(number_of)) for name in neighbors.memories.ids], np.int32
            )
            write(neighbors.memories.select(np.flatnonzero(numbers >= before)))
            # A row -1 (no memory) reads the appended -1.
            rows.write(np.append(numbers, np.int32(-1))[neighbors.rows])
            scores.write(neighbors.scores)
            bar.update(len(neighbors.rows))
