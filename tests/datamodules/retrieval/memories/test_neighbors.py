"""The neighbour store: right, resumed after a kill, shared by processes, never a stale one."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from datamodules.core.errors import InputError
from datamodules.core.storage import MANIFEST
from datamodules.corpora.rows import Rows
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
from datamodules.retrieval.memories import neighbors
from datamodules.retrieval.memories.folder_memory import FolderMemory
from datamodules.retrieval.memories.memory import Neighbors
from datamodules.retrieval.memories.neighbors import NeighborStore, build_neighbors, neighbors_fingerprint
from tests.datamodules.corpus import in_processes, rows

K = 4


class RecordedMemory(FolderMemory):
    """Writes down each search; may kill its process, or find the disk full, before search number `last`."""

    log: Path
    last: int | None = None
    full = False

    def search(
        self,
        texts: Sequence[str],
        k: int,
        leave_out_copies: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        if self.searches() == self.last:
            if self.full:
                raise OSError(28, "No space left on device")
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as file:
            file.write(f"{texts[0]}\n")
        return super().search(texts, k, leave_out_copies, own_ids)

    def searches(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedMemory:
    """A memory of 60 rows; queries go to it in blocks of 8."""
    monkeypatch.setattr(neighbors, "BLOCK", 8)
    FolderMemory.build(rows(60), EmbeddedRetriever(), tmp_path / "memory", progress=False)
    memory = RecordedMemory(tmp_path / "memory", EmbeddedRetriever())
    memory.log = tmp_path / "log"
    return memory


QUERIES = rows(37, seed=1, prefix="q")


def build(memory: FolderMemory, cache: Path, queries: Rows = QUERIES, k: int = K, out: bool = False) -> Path:
    return build_neighbors(queries, memory, k, out, cache, progress=False)[0]


def open_store(memory: FolderMemory, folder: Path) -> NeighborStore:
    return NeighborStore.open(folder, neighbors_fingerprint(QUERIES, memory, K, False))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_store_holds_what_the_memory_returns(tmp_path: Path, memory: RecordedMemory) -> None:
    store = open_store(memory, build(memory, tmp_path / "cache"))
    assert memory.searches() == 5  # 37 queries in blocks of 8
    assert store.rows.shape == store.scores.shape == (37, K)
    assert store.rows.dtype == np.int32
    assert store.scores.dtype == np.float32
    assert isinstance(store.rows, np.memmap)
    expected = memory.retriever.search(QUERIES.texts[:], K)
    np.testing.assert_array_equal(store.scores, expected.scores)
    np.testing.assert_array_equal(store.rows == -1, expected.rows == -1)
    table = memory.rows
    for here, there in zip(store.rows.ravel().tolist(), expected.rows.ravel().tolist(), strict=True):
        if there >= 0:
            assert store.memories.ids[here] == table.ids[there]
            assert store.memories.texts[here] == table.texts[there]
            assert store.memories.label(here) == table.label(there)
    # Blocks share memories, but the store has each only once.
    assert len(set(store.memories.ids)) == len(store.memories)
    assert set(store.rows[store.rows >= 0].tolist()) == set(range(len(store.memories)))


def test_the_size_of_blocks_changes_no_neighbor(
    tmp_path: Path, memory: RecordedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def texts(store: NeighborStore) -> list[list[str]]:
        return [[store.memories.texts[i] if i >= 0 else "" for i in row] for row in store.rows.tolist()]

    small = open_store(memory, build(memory, tmp_path / "a"))
    monkeypatch.setattr(neighbors, "BLOCK", 1000)
    large = open_store(memory, build(memory, tmp_path / "b"))
    assert texts(small) == texts(large)
    np.testing.assert_array_equal(small.scores, large.scores)


def test_missing_hits_are_minus_one_and_zero(tmp_path: Path, memory: RecordedMemory) -> None:
    queries = Rows.from_lists(["unknown words"] * 9 + ["lion"] + [""], source="queries")
    folder = build(memory, tmp_path / "cache", queries, k=30)
    store = NeighborStore.open(folder, neighbors_fingerprint(queries, memory, 30, False))
    having = sum("lion" in text.split() for text in memory.rows.texts)
    assert 0 < having < 30
    assert (store.rows >= 0).sum(axis=1).tolist() == [0] * 9 + [having, 0]
    assert (store.scores[store.rows == -1] == 0).all()
    assert len(store.memories) == having
    nothing = Rows.from_lists(["unknown"], source="queries")
    folder = build(memory, tmp_path / "cache", nothing)
    store = NeighborStore.open(folder, neighbors_fingerprint(nothing, memory, K, False))
    assert store.rows.tolist() == [[-1] * K]
    assert len(store.memories) == 0


def test_a_finished_store_is_not_searched_again(tmp_path: Path, memory: RecordedMemory) -> None:
    first = build(memory, tmp_path / "cache")
    assert build(memory, tmp_path / "cache") == first
    assert memory.searches() == 5
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {first.name, f".{first.name}.lock"}


def test_a_killed_build_goes_on_where_it_stopped(tmp_path: Path, memory: RecordedMemory) -> None:
    expected = contents(build(memory, tmp_path / "uninterrupted"))
    memory.log.unlink()

    memory.last = 2
    assert in_processes(1, build, memory, tmp_path / "cache") == [-signal.SIGKILL]
    assert memory.searches() == 2
    assert not list((tmp_path / "cache").glob(f"*/{MANIFEST}"))

    memory.last = None
    folder = build(memory, tmp_path / "cache")
    assert contents(folder) == expected
    # Every block was searched once: the first two by the process that died.
    assert memory.log.read_text().splitlines() == [QUERIES.texts[start] for start in range(0, 37, 8)]
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {folder.name, f".{folder.name}.lock"}


@pytest.mark.parametrize("where", ["_join_blocks", "finish_folder"])
def test_a_kill_after_the_last_search_loses_nothing(
    tmp_path: Path, memory: RecordedMemory, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = contents(build(memory, tmp_path / "uninterrupted"))

    def kill(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(neighbors, where, kill)
        assert in_processes(1, build, memory, tmp_path / "cache") == [-signal.SIGKILL]
    assert memory.searches() == 10
    assert contents(build(memory, tmp_path / "cache")) == expected
    assert memory.searches() == 10


def test_a_full_disk_keeps_what_is_done(tmp_path: Path, memory: RecordedMemory) -> None:
    memory.last, memory.full = 3, True
    with pytest.raises(InputError, match="disk is full") as error:
        build(memory, tmp_path / "cache")
    assert str(tmp_path / "cache") in str(error.value)
    assert "\n" not in str(error.value)
    memory.last = None
    build(memory, tmp_path / "cache")
    assert memory.searches() == 5


def test_two_processes_make_one_store(tmp_path: Path, memory: RecordedMemory) -> None:
    def build_and_open(cache: Path) -> None:
        assert open_store(memory, build(memory, cache)).rows.shape == (37, K)

    assert in_processes(2, build_and_open, tmp_path / "cache") == [0, 0]
    assert memory.searches() == 5  # the second waited and took the first one's
    folder = build(memory, tmp_path / "cache")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_whatever_changes_neighbors_changes_the_fingerprint(tmp_path: Path, memory: RecordedMemory) -> None:
    def other_memory(name: str, table: Rows, **ranking: float) -> FolderMemory:
        retriever = EmbeddedRetriever(**ranking)  # type: ignore[arg-type]
        return FolderMemory.build(table, retriever, tmp_path / name, progress=False)

    base = neighbors_fingerprint(QUERIES, memory, K, False)
    assert neighbors_fingerprint(rows(37, seed=1, prefix="q"), memory, K, False) == base
    others = [
        neighbors_fingerprint(rows(37, seed=2, prefix="q"), memory, K, False),
        neighbors_fingerprint(QUERIES, memory, K + 1, False),
        neighbors_fingerprint(QUERIES, memory, K, True),
        neighbors_fingerprint(QUERIES, other_memory("rows", rows(61)), K, False),
        neighbors_fingerprint(QUERIES, other_memory("k1", rows(60), k1=2.0), K, False),
        neighbors_fingerprint(
            QUERIES, other_memory("similarity", rows(60), similarity="LMDirichlet"), K, False
        ),
        neighbors_fingerprint(QUERIES, other_memory("analyzer", rows(60), analyzer="english"), K, False),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_a_changed_memory_makes_another_store_beside_the_old(tmp_path: Path, memory: RecordedMemory) -> None:
    old = build(memory, tmp_path / "cache")
    kept = contents(old)
    table = rows(60)
    changed = Rows.from_lists(["lion " + text for text in table.texts], table.labels, table.ids)
    other = FolderMemory.build(changed, EmbeddedRetriever(), tmp_path / "other", progress=False)
    new = build(other, tmp_path / "cache")
    assert new != old
    assert contents(old) == kept
    assert open_store(other, new).memories.texts[0].startswith("lion ")
    with pytest.raises(InputError, match="other texts or settings"):
        open_store(other, old)


@pytest.mark.parametrize("name", ["rows.npy", "scores.npy", "memories.arrow"])
def test_a_damaged_store_is_named_and_made_again(
    tmp_path: Path, memory: RecordedMemory, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = build(memory, tmp_path / "cache")
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-7] + bytes([whole[-7] ^ 1]) + whole[-6:])
    build(memory, tmp_path / "cache")
    assert path.read_bytes() == whole
    assert f"{path}: damaged (its checksum has changed); it is built again" in caplog.text

    path.write_bytes(whole[:-9])
    with pytest.raises(InputError, match=f"{len(whole) - 9} bytes instead of {len(whole)}") as error:
        open_store(memory, folder)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        NeighborStore.open(tmp_path / "neighbors-0", "f")


def test_a_store_in_memory_is_what_the_memory_returned(memory: RecordedMemory) -> None:
    found = memory.search(["the lion", "sail"], 3)
    store = NeighborStore.from_neighbors(found)
    assert store.rows is found.rows
    assert store.scores is found.scores
    assert store.memories is found.memories
