"""The neighbors of the rows of a table, retrieved once, in blocks, and stored in a folder of the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter
from datamodules.core.errors import InputError
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
) -> tuple[Path, str]:
    """Store the k memories of every text; return folder and fingerprint. `same_table` excludes equal ids, too."""
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

    folder = cache / f"neighbors-{fingerprint[:16]}"
    blocks = cache / f"{folder.name}.blocks"
    with storage.named_disk_errors(folder), storage.lock(folder):
        if not storage.is_whole(folder, fingerprint):
            blocks.mkdir(parents=True, exist_ok=True)
            _retrieve_blocks(search, len(texts), blocks)
            try:
                memory.check_unchanged()
            except InputError:
                shutil.rmtree(blocks)
                raise
            with storage.new_folder(folder, fingerprint, texts=len(texts), k=k) as partial:
                _join_blocks(blocks, partial, k)
        shutil.rmtree(blocks, ignore_errors=True)
    return folder, fingerprint


def _retrieve_blocks(search: Callable[[slice], Neighbors], total: int, blocks: Path) -> None:
    """Write the neighbors of blocks of rows, a file for each block that has none: a killed process resumes here."""
    with progress_bar(total=total, desc="retrieving memories") as bar:
        for start in range(0, total, BLOCK):
            block, done = slice(start, min(start + BLOCK, total)), blocks / f"{start // BLOCK:06d}.npz"
            if not done.exists():
                neighbors = search(block)
                neighbors.memories.save(done.with_suffix(".arrow"))
                # The file of the hits marks a finished block, so it is written last and renamed.
                partial = done.with_suffix(".partial.npz")
                np.savez(partial, rows=neighbors.rows, scores=neighbors.scores)
                partial.replace(done)
            bar.update(block.stop - block.start)


def _join_blocks(blocks: Path, folder: Path, k: int) -> None:
    """Join the blocks, with each distinct memory once; one block is in memory at a time."""
    number_of: dict[str, int] = {}
    with (
        ArrayWriter(folder / "rows.npy", np.int32, (k,)) as rows,
        ArrayWriter(folder / "scores.npy", np.float32, (k,)) as scores,
        Rows.writer(folder / "memories.arrow") as write,
    ):
        for block in sorted(blocks.glob("??????.npz")):
            with np.load(block) as hits:
                block_rows, block_scores = hits["rows"], hits["scores"]
            memories = Rows.load(block.with_suffix(".arrow"))
            before = len(number_of)
            numbers = np.array(
                [number_of.setdefault(name, len(number_of)) for name in memories.ids], dtype=np.int32
            )
            write(memories.select(np.flatnonzero(numbers >= before)))
            # A row -1 (no memory) reads the appended -1.
            rows.write(np.append(numbers, np.int32(-1))[block_rows])
            scores.write(block_scores)
