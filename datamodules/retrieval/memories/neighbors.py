"""The neighbour store: what a memory returned for the rows of a table, on disk.

Retrieval runs once, before training, in blocks of queries. A killed run goes on at the block where it
stopped; a finished store is memory-mapped by every process and holds the memories' texts and labels, so
that training needs neither the index nor the server.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.arrays import ArrayWriter
from datamodules.core.errors import InputError
from datamodules.core.storage import (
    check_folder,
    fingerprint_of,
    finish_folder,
    is_whole,
    lock,
    named_disk_errors,
)
from datamodules.corpora.rows import Rows
from datamodules.retrieval.folding import FOLDING
from datamodules.retrieval.memories.memory import Memory, Neighbors

BLOCK = 8192


@dataclass(frozen=True)
class NeighborStore:
    """The neighbours of n texts.

    Attributes:
        rows: int32 [n, k], rows of `memories`, -1 where there are fewer than k.
        scores: float32 [n, k], retrieval scores.
        memories: the distinct memories that were retrieved, in order of first use.
        fingerprint: identifies texts, memory, ranking, k and what was left out.
    """

    rows: NDArray[np.int32]
    scores: NDArray[np.float32]
    memories: Rows
    fingerprint: str

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> NeighborStore:
        """Map a finished store.

        Raises:
            InputError: it is missing, unfinished, damaged or another one.
        """
        check_folder(folder, fingerprint)
        return cls(
            rows=np.load(folder / "rows.npy", mmap_mode="r"),
            scores=np.load(folder / "scores.npy", mmap_mode="r"),
            memories=Rows.load(folder / "memories.arrow"),
            fingerprint=fingerprint,
        )

    @classmethod
    def from_neighbors(cls, neighbors: Neighbors) -> NeighborStore:
        """A store in memory, for texts that come one by one (prediction)."""
        return cls(*neighbors, fingerprint="")


def neighbors_fingerprint(
    texts: Rows, memory: Memory, k: int, leave_out_copies: bool, same_table: bool = False
) -> str:
    """Identifies a neighbour store: a change of texts, memory, ranking, k or exclusion gives another."""
    return fingerprint_of(
        {
            "texts": texts.fingerprint,
            "memory": memory.fingerprint,
            "back end": type(memory.retriever).__name__,
            "k": k,
            # Stores made by another way of folding have other copies.
            "copies out": leave_out_copies and [FOLDING, same_table],
        }
    )


def build_neighbors(
    texts: Rows,
    memory: Memory,
    k: int,
    leave_out_copies: bool,
    cache: Path,
    progress: bool = True,
    same_table: bool = False,
) -> tuple[Path, str]:
    """Retrieve the k memories of every text, unless a finished store is there already.

    Processes that build the same store at the same time wait for the first one and use its store.

    Args:
        texts: the queries.
        memory: where to look.
        k: memories a text.
        leave_out_copies: see `Memory.search`.
        cache: folder of stores; this one is `cache/neighbors-<fingerprint>`.
        progress: show a progress bar on standard error.
        same_table: the texts are rows of the table that the memory was made of: rows of equal ids are copies, too.

    Returns:
        The store's folder and fingerprint, for `NeighborStore.open`.
    """
    fingerprint = neighbors_fingerprint(texts, memory, k, leave_out_copies, same_table)
    folder = cache / f"neighbors-{fingerprint[:16]}"
    with lock(folder), named_disk_errors(folder):
        if not is_whole(folder, fingerprint):
            blocks = cache / f"neighbors-{fingerprint[:16]}.blocks"
            blocks.mkdir(parents=True, exist_ok=True)
            own_ids = texts.ids if leave_out_copies and same_table else None
            _retrieve_blocks(texts, memory, k, leave_out_copies, own_ids, blocks, progress)
            try:
                memory.check_unchanged()
            except InputError:
                shutil.rmtree(blocks)
                raise
            partial = cache / f"neighbors-{fingerprint[:16]}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            _join_blocks(blocks, partial, k)
            finish_folder(partial, folder, fingerprint, texts=len(texts), k=k)
        shutil.rmtree(cache / f"neighbors-{fingerprint[:16]}.blocks", ignore_errors=True)
    return folder, fingerprint


def _retrieve_blocks(
    texts: Rows,
    memory: Memory,
    k: int,
    leave_out_copies: bool,
    own_ids: list[str] | None,
    blocks: Path,
    progress: bool,
) -> None:
    starts = range(0, len(texts), BLOCK)
    with tqdm(
        total=len(texts), desc="retrieving memories", unit="text", delay=2, disable=None if progress else True
    ) as bar:
        for number, start in enumerate(starts):
            done = blocks / f"{number:06d}.npz"
            queries = texts.texts[start : start + BLOCK]
            if not done.exists():
                ids = None if own_ids is None else own_ids[start : start + BLOCK]
                found = memory.search(queries, k, leave_out_copies, ids)
                found.memories.save(blocks / f"{number:06d}.arrow")
                # The hits are written last and renamed: their file is the mark of a finished block.
                partial = blocks / f"{number:06d}.partial.npz"
                np.savez(partial, rows=found.rows, scores=found.scores)
                partial.replace(done)
            bar.update(len(queries))


def _join_blocks(blocks: Path, folder: Path, k: int) -> None:
    """Number the memories of all blocks anew, each distinct one once; one block in memory at a time."""
    number_of: dict[str, int] = {}
    with (
        ArrayWriter(folder / "rows.npy", np.int32, (k,)) as rows,
        ArrayWriter(folder / "scores.npy", np.float32, (k,)) as scores,
        Rows.writer(folder / "memories.arrow") as write_memories,
    ):
        for block in sorted(blocks.glob("??????.npz")):
            with np.load(block) as hits:
                block_rows, block_scores = hits["rows"], hits["scores"]
            memories = Rows.load(block.with_suffix(".arrow"))
            before = len(number_of)
            numbers = np.array(
                [number_of.setdefault(name, len(number_of)) for name in memories.ids], dtype=np.int32
            )
            write_memories(memories.select(np.flatnonzero(numbers >= before)))
            # A row -1 (no memory) reads the appended -1.
            rows.write(np.append(numbers, np.int32(-1))[block_rows])
            scores.write(block_scores)
