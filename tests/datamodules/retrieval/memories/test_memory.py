"""A memory in a folder: its neighbors, and its errors."""

import shutil
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from datamodules.core import storage
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory, open_memory
from datamodules.retrieval.embedded import inverted_index
from datamodules.retrieval.memories import versions
from datamodules.retrieval.memories.versions import POINTER, contents_of_memory
from tests.datamodules.checks import kill, refused
from tests.datamodules.corpus import LABELS, in_processes, rows
from tests.datamodules.retrieval.memories.test_memory_growth import build

QUERIES = ["the old lion and the tiger", "Yeast dough", "rudder", "nothing here is known", ""]


@pytest.mark.parametrize("similarity", ["BM25", "LMDirichlet"])
def test_hits_come_with_their_own_texts_labels_and_ids(tmp_path: Path, similarity: str) -> None:
    table, retriever = rows(60), EmbeddedRetriever(similarity=similarity)  # type: ignore[arg-type]
    neighbors = build(tmp_path / "m", table, retriever).search(QUERIES, 7)
    hits = retriever.search(QUERIES, 7)
    assert neighbors.rows.dtype == np.int32
    assert neighbors.scores.dtype == np.float32
    np.testing.assert_array_equal(neighbors.scores, hits.scores)
    np.testing.assert_array_equal(neighbors.rows == -1, hits.rows == -1)
    assert (hits.rows[:3] >= 0).any(axis=1).all()
    for own, row in zip(neighbors.rows.ravel().tolist(), hits.rows.ravel().tolist(), strict=True):
        if row >= 0:
            assert neighbors.memories.ids[own] == f"r{row}"
            assert neighbors.memories.texts[own] == table.texts[row]
            assert neighbors.memories.label(own) == table.label(row)
    # Each distinct memory once, and no others.
    assert len(set(neighbors.memories.ids)) == len(neighbors.memories)
    assert set(neighbors.rows[neighbors.rows >= 0].tolist()) == set(range(len(neighbors.memories)))


def test_labels_and_location_and_length(tmp_path: Path) -> None:
    memory = build(tmp_path / "m", retriever=EmbeddedRetriever(similarity="LMDirichlet", mu=50.0))
    assert memory.labels() == sorted(LABELS)
    assert len(memory) == 60
    assert open_memory(memory.location()).fingerprint == memory.fingerprint


def test_duplicates_are_found_whatever_their_case_and_space(tmp_path: Path) -> None:
    table = Rows.from_lists(["The lion", "a lion", "the  LION ", "sail", "the lion"])
    memory = build(tmp_path / "m", table)
    duplicates = [sorted(rows.tolist()) for rows in memory.opened.excluded_rows(["the lion", "SAIL", "lion"])]
    assert duplicates == [[0, 2, 4], [3], []]
    kept = memory.search(["the lion", "SAIL"], 5, exclude_duplicates=True).memories
    assert list(kept.texts) == ["a lion"]
    assert len(memory.search(["the lion"], 5).memories) == 4


def test_the_fingerprint_is_that_of_rows_and_ranking(tmp_path: Path) -> None:
    def fingerprint(name: str, table: Rows, **ranking: Any) -> str:
        return build(tmp_path / name, table, EmbeddedRetriever(**ranking)).fingerprint

    base = fingerprint("a", rows(30))
    assert fingerprint("b", rows(30)) == base
    others = [fingerprint("c", rows(30, seed=1)), fingerprint("d", rows(29))]
    rankings: list[dict[str, Any]] = [{"b": 0.5}, {"similarity": "LMDirichlet"}, {"analyzer": "english"}]
    others += [fingerprint(f"r{number}", rows(30), **each) for number, each in enumerate(rankings)]
    assert len({base, *others}) == 6


def test_a_second_build_uses_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, never = build(tmp_path / "m").search(QUERIES, 4), Mock(side_effect=AssertionError("built again"))
    monkeypatch.setattr(EmbeddedRetriever, "index", never)
    monkeypatch.setattr(versions, "fold_hashes", never)
    again = build(tmp_path / "m").search(QUERIES, 4)
    np.testing.assert_array_equal(again.rows, first.rows)


@pytest.mark.parametrize("where", ["fold_hashes", "_write_postings"])
def test_a_killed_build_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(versions if where == "fold_hashes" else inverted_index, where, kill)
        assert in_processes(1, build, tmp_path / "m") == [-signal.SIGKILL]
    with pytest.raises(InputError, match="no memory here"):
        open_memory(str(tmp_path / "m"), EmbeddedRetriever())
    rebuilt, expected = build(tmp_path / "m").search(QUERIES, 5), build(tmp_path / "n").search(QUERIES, 5)
    np.testing.assert_array_equal(rebuilt.scores, expected.scores)
    assert rebuilt.memories.ids == expected.memories.ids
    assert {p.name for p in (tmp_path / "m").iterdir()} == {p.name for p in (tmp_path / "n").iterdir()}


def test_other_rows_do_not_replace_a_memory(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    with refused(
        tmp_path / "m",
        "build the memory again in another folder",
        match="was built from other texts or settings",
    ):
        build(tmp_path / "m", rows(30))
    build(tmp_path / "other", rows(30))  # the advice of the message
    assert len(open_memory(memory.location(), EmbeddedRetriever()).search(["lion"], 3).memories) == 3


def test_a_memory_needs_rows_with_ids_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one row"):
        build(tmp_path / "m", Rows.from_lists([]))
    with refused("my.csv", match="several rows have the id 'b'"):
        build(tmp_path / "m", Rows.from_lists(["x", "y", "z"], ids=["a", "b", "b"], source="my.csv"))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("contents", ["", "[]", "{}", '{"version": "x"}', '{"version": 1}'])
def test_a_damaged_pointer_is_named(tmp_path: Path, contents: str) -> None:
    build(tmp_path / "m")
    (tmp_path / "m" / POINTER).write_text(contents)
    with refused(tmp_path / "m" / POINTER, match="damaged"):
        FolderMemory(tmp_path / "m", EmbeddedRetriever())
    build(tmp_path / "m")  # the advice of the message
    FolderMemory(tmp_path / "m", EmbeddedRetriever())


def test_another_ranking_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "m")
    with refused(tmp_path / "m", "BM25", "LMDirichlet", match="built for"):
        open_memory(str(tmp_path / "m"), EmbeddedRetriever(similarity="LMDirichlet"))
    with pytest.raises(InputError):
        FolderMemory(tmp_path / "m", EmbeddedRetriever(k1=2.0))


def flip_a_bit(path: Path) -> bytes:
    """Damage a file and return its undamaged contents."""
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    return whole


def test_memories_in_the_same_folder_are_identified(tmp_path: Path) -> None:
    """Neither rows nor index are read: a start must not read gigabytes."""
    contents = []
    for texts in (rows(20), rows(30)):
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        memory = build(tmp_path / "m", texts)
        contents.append(contents_of_memory(str(tmp_path / "m")))
    memory.add(Rows.from_lists(["a new zebra"], LABELS[:1]))
    contents.append(contents_of_memory(str(tmp_path / "m")))
    assert len(set(map(str, contents))) == 3
    assert set(contents[-1]) == {"memory.json", "version-1/manifest.json", "version-2/manifest.json"}


def test_damaged_rows_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rows are stored nowhere else: only a build from the same rows restores them."""
    build(tmp_path / "m")
    path = tmp_path / "m" / "version-1" / "rows-1-0.arrow"
    whole = flip_a_bit(path)
    with refused(
        path, "restore it from a backup, or build the memory again in another folder", match="checksum"
    ):
        open_memory(str(tmp_path / "m"), EmbeddedRetriever())
    build(tmp_path / "other")  # the advice of the message
    build(tmp_path / "m")
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", ["posting_scores.npy", "manifest.json"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = build(tmp_path / "m").search(["lion", "a cat"], 3)
    (path,) = (tmp_path / "m").glob(f"version-1/index-*/{name}")
    whole = flip_a_bit(path)
    memory = open_memory(str(tmp_path / "m"), EmbeddedRetriever())
    assert "the index is rebuilt" in caplog.text
    assert path.read_bytes() == whole
    after = memory.search(["lion", "a cat"], 3)
    assert np.array_equal(after.rows, before.rows)
    assert np.array_equal(after.scores, before.scores)


def test_a_location_on_a_server_needs_its_retriever() -> None:
    with pytest.raises(InputError, match="ElasticsearchRetriever"):
        open_memory("index:mine", EmbeddedRetriever())


def test_the_state_of_a_model_points_to_the_version(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("that of another program")
    memory = build(tmp_path / "memory")
    (tmp_path / "model.json").write_text("that of another program")
    state, folder = tmp_path / "model" / "state.json", tmp_path / "model" / "memory"
    folder.parent.mkdir()
    (folder.parent / "model.json").touch()
    storage.set_key(state, "fitted", {"1": "weights"})
    copy = memory.copy_to(folder)
    copy.remove(copy.rows.ids[:1])
    assert not (folder / POINTER).exists()
    assert storage.read_checked(state, "")["fitted"] == {"1": "weights"}
    assert FolderMemory(folder, EmbeddedRetriever()).version == 2
    assert FolderMemory(tmp_path / "memory", EmbeddedRetriever()).version == 1
    assert open_memory(str(folder)).rows.ids == memory.rows.ids[1:]
    state.unlink()
    with pytest.raises(InputError, match=r"no memory here \(it has no state.json\)"):
        open_memory(str(folder))
