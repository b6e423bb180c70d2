"""A memory that grows: new rows are searched at once, old versions stay, and interruptions do no harm."""

import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.memory_source import MemorySource
from datamodules.options import MemoryOptions
from datamodules.retrieval import ElasticsearchRetriever, EmbeddedRetriever, FolderMemory, IndexMemory
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.embedded import inverted_index
from datamodules.retrieval.memories import versions
from datamodules.retrieval.memories.index_memory import open_memory
from datamodules.retrieval.memories.memory import Neighbors
from datamodules.retrieval.memories.versions import POINTER
from tests.datamodules.checks import files_of, grown_from, kill, kill_after, refused, sizes
from tests.datamodules.corpus import in_processes, labelled_texts, rows
from zoo.memory.opened import OpenedMemory
from zoo.search import search

QUERIES = ["the old lion and the tiger", "Yeast dough", "rudder zebra", "zebra", "nothing here is known", ""]
NEW = (["zebra crossing", "old zebra", "a small oar"], ["beasts", "beasts", "boats"])


def build(folder: Path, table: Rows | None = None, retriever: Retriever | None = None) -> FolderMemory:
    table = rows(60) if table is None else table
    return FolderMemory.build(table, retriever or EmbeddedRetriever(), folder)


def more(texts: list[str] = NEW[0], labels: list[str] | None = NEW[1]) -> Rows:
    return Rows.from_lists(texts, labels, source="more.csv")


def hits_of(neighbors: Neighbors) -> list[list[tuple[Any, ...]]]:
    """Id, text, label and score of each hit."""
    return [[tuple(hit.values()) for hit in hits] for hits in search.hits_of(neighbors)]


def check_same(neighbors: Neighbors, expected: Neighbors) -> None:
    """Check that rows and scores are equal; a text may be encoded with other rounding in another batch."""
    mine, others = hits_of(neighbors), hits_of(expected)
    assert [[hit[:3] for hit in hits] for hits in mine] == [[hit[:3] for hit in hits] for hits in others]
    np.testing.assert_allclose(neighbors.scores, expected.scores, rtol=2e-7)


def test_new_rows_are_found_and_versions_stay(tmp_path: Path) -> None:
    grown = build(tmp_path / "m")
    before = hits_of(grown.search(QUERIES, 5))
    assert before[3] == []
    assert grown.add(more()) == (2, 63, 3, 0, 0, 0)
    after = hits_of(grown.search(QUERIES, 5))
    assert {hit[:3] for hit in after[3]} == {
        ("2:0", "zebra crossing", "beasts"),
        ("2:1", "old zebra", "beasts"),
    }
    assert grown.add(more(["zebra zebra"], ["boats"])).version == 3
    assert {hit[0] for hit in hits_of(grown.search(["zebra"], 5))[0]} == {"2:0", "2:1", "3:0"}

    # Every version ranks like a memory that was built of its rows at once, now and later.
    together = build(tmp_path / "n", Rows(grown.rows.table.slice(0, 63), "n"))
    assert hits_of(together.search(QUERIES, 5)) == after
    for version, expected in ((1, before), (2, after)):
        old = FolderMemory(tmp_path / "m", EmbeddedRetriever(), version)
        assert (old.version, hits_of(old.search(QUERIES, 5))) == (version, expected)
    assert together.fingerprint == old.fingerprint
    assert hits_of(open_memory(str(tmp_path / "m"), version=1).search(QUERIES, 5)) == before
    current = open_memory(str(tmp_path / "m"))
    assert sizes(current) == [(1, 60), (2, 63), (3, 64)]
    assert hits_of(build(tmp_path / "m").search(QUERIES, 5)) == before
    assert len(open_memory(str(tmp_path / "m")).search(["zebra"], 5).memories) == 3


def test_rows_keep_their_numbers_and_ids(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    ids = memory.rows.ids
    memory.add(more(["otter", "Old  ZEBRA", "old zebra", "zebra"], ["bread", "boats", "boats", "boats"]))
    # 2:2 would be a duplicate of 2:1; the number is the position in the given table.
    assert memory.rows.ids == [*ids, "2:0", "2:1", "2:3"]
    assert memory.rows.texts[0] == rows(60).texts[0]
    memory.add(Rows.from_lists(["new keel"], ["boats"], ["4:0"]), keep_ids=True)
    memory.add(more(["new mast"], ["boats"]))
    assert memory.rows.ids[-2:] == ["4:0", "4:0+"]


def test_duplicates_are_skipped_and_other_labels_kept(tmp_path: Path) -> None:
    memory = build(
        tmp_path / "m", Rows.from_lists(["The lion", "a sail", "a sail"], ["beasts", "boats", "bread"])
    )
    addition = memory.add(
        more(
            ["the  LION", "the lion", "a sail", "A Sail", "new", "NEW", "new"],
            ["beasts", "boats", "bread", "beasts", "boats", "boats", "bread"],
        )
    )
    assert addition == (2, 7, 4, 3, 3, 0)
    expected = [("the lion", "boats"), ("A Sail", "beasts"), ("new", "boats"), ("new", "bread")]
    assert list(zip(memory.rows.texts, memory.rows.labels or [], strict=True))[3:] == expected
    relabelled = memory.add(more(["the lion", "a raft"], ["bread", "boats"]), relabel=True)
    assert relabelled == (3, 8, 1, 1, 0, 2)
    assert memory.history()[-1]["change"] == "+1, 2 relabelled"
    assert [memory.rows.label(row) for row in (0, 3, 7)] == ["bread", "bread", "boats"]
    # Nothing new: no version.
    before = files_of(tmp_path / "m")
    assert memory.add(more(["new", "THE LION"], ["bread"] * 2)) == (3, 8, 0, 2, 0, 0)
    assert files_of(tmp_path / "m") == before


def test_a_memory_without_labels_grows_without_labels(tmp_path: Path) -> None:
    memory = build(tmp_path / "m", Rows.from_lists(["a lion", "a sail"]))
    with pytest.raises(InputError, match=r"row 1 .'zebra crossing'. has a label, but the memory has none"):
        memory.add(more())
    assert memory.add(more(["zebra", "A LION"], None)) == (2, 3, 1, 1, 0, 0)
    assert memory.search(["zebra"], 1).memories.label(0) is None


def test_an_existing_index_is_not_written_to() -> None:
    mine = object.__new__(IndexMemory)
    mine.retriever = ElasticsearchRetriever(index="mine")
    with pytest.raises(InputError, match="index:mine: this index is only read"):
        OpenedMemory(mine, None).folder.remove([])
    with pytest.raises(InputError, match="no versions"):
        open_memory("index:mine", mine.retriever, version=1)
    with refused("m: the retriever reads the index mine; omit one"):
        MemorySource(MemoryOptions(memory="m"), mine.retriever, Path(), False).find(None, {}, True)


def test_any_version_that_is_open_grows_the_current_one(tmp_path: Path) -> None:
    first, second = build(tmp_path / "m"), build(tmp_path / "m")
    first.add(more(["zebra"], ["beasts"]))
    assert hits_of(second.search(["zebra"], 5)) == [[]]
    assert second.add(more(["old zebra"], ["boats"])).version == 3
    assert {hit[0] for hit in hits_of(second.search(["zebra"], 5))[0]} == {"2:0", "3:0"}
    assert [hit[0] for hit in hits_of(first.search(["zebra"], 5))[0]] == ["2:0"]
    # A row of the second is a duplicate for the first.
    assert first.add(more(["old zebra"], ["boats"])) == (3, 62, 0, 1, 0, 0)


PLACES = [(versions, "_write", True), (inverted_index, "_write_postings", True)]
PLACES += [(versions, "write_pointer", False), (versions, "write_pointer", True)]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("killed", PLACES)
def test_a_killed_addition_leaves_the_old_memory_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: tuple[Any, str, bool], same: bool
) -> None:
    place, name, after = killed
    memory = build(tmp_path / "m")
    before = hits_of(memory.search(QUERIES, 5))
    with monkeypatch.context() as patch:
        patch.setattr(place, name, kill_after(getattr(place, name)) if after else kill)
        assert in_processes(1, memory.add, more()) == [-signal.SIGKILL]
    done = name == "write_pointer" and after
    opened = FolderMemory(tmp_path / "m", EmbeddedRetriever())
    assert opened.version == (2 if done else 1)
    assert hits_of(FolderMemory(tmp_path / "m", EmbeddedRetriever(), 1).search(QUERIES, 5)) == before
    # The next addition works, of the same rows or of others, and leaves nothing of the killed memory.
    table = more() if same else more(["other zebra"], ["bread"])
    opened.add(table)
    expected = build(tmp_path / "n")
    if done:
        expected.add(more())
    expected.add(table)
    check_same(opened.search(QUERIES, 5), expected.search(QUERIES, 5))
    assert {p.name for p in (tmp_path / "m").iterdir() if p.suffix != ".lock"} == {
        p.name for p in (tmp_path / "n").iterdir() if p.suffix != ".lock"
    }


def test_a_failed_addition_leaves_the_memory_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build(tmp_path / "m")
    before = hits_of(memory.search(QUERIES, 5))

    def fail(self: EmbeddedRetriever, *_: Any, **__: Any) -> None:
        self.close()
        raise InputError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedRetriever, "update", fail)
        with pytest.raises(InputError, match="the disk is full"):
            memory.add(more())
    assert (memory.version, len(memory), hits_of(memory.search(QUERIES, 5))) == (1, 60, before)
    assert memory.add(more()).version == 2


def test_two_processes_add(tmp_path: Path) -> None:
    assert in_processes(2, build(tmp_path / "m").add, more()) == [0, 0]
    # The second process has added duplicates only.
    assert sizes(FolderMemory(tmp_path / "m", EmbeddedRetriever())) == [(1, 60), (2, 63)]


def test_the_index_of_a_grown_collection_is_the_index_of_all_its_texts(tmp_path: Path) -> None:
    texts = [*labelled_texts(300)[0], "", "ünïcode 猫 zebra", "zebra"]
    grown, whole = EmbeddedRetriever(), EmbeddedRetriever()
    grown.index(Rows.from_lists(texts[:250]), "old", tmp_path / "old")
    grown = pickle.loads(pickle.dumps(grown))
    grown.update(Rows.from_lists(texts), "f", grown_from(250, len(texts)), tmp_path / "grown")
    whole.index(Rows.from_lists(texts), "f", tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "grown" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_grown_memory_can_be_built_for_another_ranking(tmp_path: Path) -> None:
    build(tmp_path / "m").add(more())
    other = EmbeddedRetriever(similarity="LMDirichlet")
    assert len(build(tmp_path / "m", retriever=other)) == 60
    opened = open_memory(str(tmp_path / "m"))
    assert opened.retriever.describe() == other.describe()
    assert len(opened.search(["zebra"], 5).memories) == 2


def test_a_damaged_pointer_does_not_lose_what_was_added(tmp_path: Path) -> None:
    build(tmp_path / "m").add(more())
    (tmp_path / "m" / POINTER).write_text("{")
    with refused("memory.json: damaged; restore it from a backup or, if the memory has not grown"):
        build(tmp_path / "m")
    assert (tmp_path / "m" / "version-2").exists()
