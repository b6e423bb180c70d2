"""Stored neighbors: exact, whole or absent after a kill, never stale."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.core import storage
from datamodules.corpora.rows import Rows
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from datamodules.retrieval.memories import memory as memory_module
from datamodules.retrieval.memories.folder_memory import FolderMemory
from datamodules.retrieval.memories.memory import Neighbors, build_neighbors
from tests.datamodules.checks import kill
from tests.datamodules.corpus import in_processes, rows
from tests.datamodules.retrieval.memories.test_memory_growth import hits_of

K = 4


class RecordedMemory(FolderMemory):
    """Logs each search; may kill its process before search number `last`."""

    log: Path
    last: int | None = None

    def search(self, *arguments: Any, **options: Any) -> Neighbors:
        if self.searches() == self.last:
            kill()
        with self.log.open("a") as file:
            file.write("search\n")
        return super().search(*arguments, **options)

    def searches(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedMemory:
    """A memory of 60 rows; queries go to it in blocks of 8."""
    monkeypatch.setattr(memory_module, "BLOCK", 8)
    FolderMemory.build(rows(60), EmbeddedRetriever(), tmp_path / "memory")
    memory = RecordedMemory(tmp_path / "memory", EmbeddedRetriever())
    memory.log = tmp_path / "log"
    return memory


QUERIES = rows(37, seed=1, prefix="q")


def build(
    memory: FolderMemory, cache: Path, queries: Rows = QUERIES, k: int = K, exclude_duplicates: bool = False
) -> tuple[Path, str]:
    name, fingerprint = build_neighbors(queries, memory, k, exclude_duplicates, cache)
    return cache / name, fingerprint


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_neighbors_are_those_of_the_memory(tmp_path: Path, memory: RecordedMemory) -> None:
    stored = Neighbors.open(*build(memory, tmp_path / "cache"))
    assert memory.searches() == 5  # 37 queries in blocks of 8
    assert stored.rows.shape == stored.scores.shape == (37, K)
    assert stored.rows.dtype == np.int32
    assert stored.scores.dtype == np.float32
    assert isinstance(stored.rows, np.memmap)
    expected = FolderMemory.search(memory, QUERIES.texts[:], K)
    assert hits_of(stored) == hits_of(expected)
    # Blocks share memories, but each is stored only once.
    assert len(set(stored.memories.ids)) == len(stored.memories)
    assert set(stored.rows[stored.rows >= 0].tolist()) == set(range(len(stored.memories)))


def test_missing_hits_are_minus_one_and_zero(tmp_path: Path, memory: RecordedMemory) -> None:
    queries = Rows.from_lists(["unknown words"] * 9 + ["lion"] + [""], source="queries")
    stored = Neighbors.open(*build(memory, tmp_path / "cache", queries, k=30))
    having = sum("lion" in text.split() for text in memory.rows.texts)
    assert 0 < having < 30
    assert (stored.rows >= 0).sum(axis=1).tolist() == [0] * 9 + [having, 0]
    assert (stored.scores[stored.rows == -1] == 0).all()
    assert len(stored.memories) == having
    nothing = Rows.from_lists(["unknown"], source="queries")
    stored = Neighbors.open(*build(memory, tmp_path / "cache", nothing))
    assert stored.rows.tolist() == [[-1] * K]
    assert len(stored.memories) == 0


@pytest.mark.parametrize("last", [2, None])
def test_a_killed_build_leaves_no_neighbors(
    tmp_path: Path, memory: RecordedMemory, monkeypatch: pytest.MonkeyPatch, last: int | None
) -> None:
    """Killed before the third search, or after the last one."""
    expected = contents(build(memory, tmp_path / "uninterrupted")[0])
    with monkeypatch.context() as patch:
        patch.setattr(memory, "last", None if last is None else memory.searches() + last)
        patch.setattr(storage, "finish_folder", kill)
        assert in_processes(1, build, memory, tmp_path / "cache") == [-signal.SIGKILL]
    assert memory.searches() == 5 + (5 if last is None else last)
    assert not list((tmp_path / "cache").glob(f"*/{storage.MANIFEST}"))
    folder, _ = build(memory, tmp_path / "cache")
    assert contents(folder) == expected
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_whatever_changes_neighbors_changes_the_fingerprint(tmp_path: Path, memory: RecordedMemory) -> None:
    cache = tmp_path / "cache"
    _, base = build(memory, cache)
    assert build(memory, cache, rows(37, seed=1, prefix="q"))[1] == base
    others = [
        build(memory, cache, rows(37, seed=2, prefix="q"))[1],
        build(memory, cache, k=K + 1)[1],
        build(memory, cache, exclude_duplicates=True)[1],
        build_neighbors(QUERIES, memory, K, True, cache, same_table=True)[1],
        build(FolderMemory.build(rows(61), EmbeddedRetriever(), tmp_path / "other"), cache)[1],
    ]
    assert len({base, *others}) == 1 + len(others)
