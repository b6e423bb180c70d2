"""Rows that are removed, corrected and deleted for good: what is left ranks as if they had never been there."""

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from elastic_transport import Transport
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever, FolderMemory, Retriever, open_memory
from datamodules.retrieval.dense.vector_store import MOST_PARTS, VectorStore, store_folder
from datamodules.retrieval.memories import versions
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from tests.conftest import OnServer
from tests.datamodules.checks import files_of, kill, kill_after, refused, sizes
from tests.datamodules.corpus import in_processes, rows
from tests.datamodules.retrieval.conftest import MakeRetriever
from tests.datamodules.retrieval.memories.test_memory_growth import build, check_same, hits_of, more

QUERIES = ["the old lion and the tiger", "Yeast dough", "rudder oar sail", "otter", "nothing here is known"]
QUERIES += [""]


def built_of(memory: FolderMemory, folder: Path, make: MakeRetriever) -> FolderMemory:
    """A memory that was built of the rows that another one has now."""
    return build(folder, Rows(memory.rows.table, "fresh"), make())


def test_a_changed_memory_ranks_like_one_built_of_its_rows(tmp_path: Path, make: MakeRetriever) -> None:
    memory = build(tmp_path / "m", rows(60), make())
    first = hits_of(memory.search(QUERIES, 8))
    ids = memory.rows.ids
    changes: list[Callable[[], Any]] = [
        lambda: memory.remove([ids[7]]),
        lambda: memory.replace({ids[8]: "boats", ids[10]: "bread"}),
        lambda: memory.add(Rows.from_lists(["a zebra and an otter", "otter"], ["beasts", "boats"])),
        lambda: memory.remove([*ids[20:31], ids[0], "4:1"]),
        lambda: memory.replace(Rows.from_lists(["an otter", "lion"], ["beasts", "beasts"], [ids[35], "4:0"])),
        lambda: memory.remove([ids[59]]),
        lambda: memory.revert(3),
    ]
    for number, change in enumerate(changes):
        assert change().version == memory.version == number + 2
        # An index on a server is named by its contents: the one of the fresh memory would be the changed one.
        is_local = isinstance(memory.retriever, EmbeddedRetriever | DenseRetriever)
        fresh = built_of(memory, tmp_path / f"fresh-{number}", make if is_local else _apart(make))
        assert memory.fingerprint == fresh.fingerprint
        check_same(memory.search(QUERIES, 8), fresh.search(QUERIES, 8))
        own = memory.rows.ids[:2]
        check_same(*(each.search(QUERIES[:2], 5, True, own) for each in (memory, fresh)))
        same = [each.opened.excluded_rows([memory.rows.texts[3]])[0].tolist() for each in (memory, fresh)]
        assert same[0] == same[1]
    assert hits_of(FolderMemory(tmp_path / "m", make(), 1).search(QUERIES, 8)) == first
    assert hits_of(FolderMemory(tmp_path / "m", make()).search(QUERIES, 8)) == hits_of(
        memory.search(QUERIES, 8)
    )
    reopened = FolderMemory(tmp_path / "m", make(), 3)
    assert [reopened.rows.label(row) for row in (7, 9)] == ["boats", "bread"]


def _apart(make: MakeRetriever) -> MakeRetriever:
    """The same retrievers, whose indexes on a server have other names."""

    def made() -> Retriever:
        retriever = make()
        retriever.use_scratch("fresh")
        return retriever

    return made


def test_a_correction_keeps_place_and_id(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    ids, texts = memory.rows.ids, list(memory.rows.texts)
    assert memory.replace({ids[5]: "boats"}).changed == (memory.rows.label(5) == "boats")
    assert memory.replace({ids[5]: "boats"}).changed == 0, "nothing changes, so there is no new version"
    assert memory.replace(Rows.from_lists(["new text"], ["boats"], [ids[3]])) == (memory.version, 60, 1)
    assert (memory.rows.ids, memory.rows.texts[3]) == (ids, "new text")
    assert list(memory.rows.texts)[4:] == texts[4:]
    assert memory.opened.rows_since(1).tolist() == [3, 5]
    other = FolderMemory(tmp_path / "m", EmbeddedRetriever())
    memory.replace(Rows.from_lists(["newer text"], ["boats"], [ids[3]]))
    other.replace({ids[3]: "bread"})
    assert (other.rows.texts[3], other.rows.label(3)) == ("newer text", "bread")
    memory = build(tmp_path / "unlabelled", Rows.from_lists(["a", "b"], ["bread", None]))
    assert (memory.replace({"1": "boats"}).changed, memory.rows.label(1)) == (1, "boats")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.remove(["0", "nobody", "\x1b[2J"]), r"has no row with the id 'nobody', '\\u001b[2J'"),
        (lambda m: m.remove(["1", "0", "1"]), "the id '1' is given more than once"),
        (lambda m: m.remove(m.rows.ids), "these are all rows of the memory, which needs at least one"),
        (lambda m: m.replace(Rows.from_lists(["x"], None, ["0"], "new")), "new: row 1 ('x') has no label"),
        (lambda m: m.replace(Rows.from_lists(["x"], ["bread"], ["9"])), "; removed rows, and those drawn"),
        (lambda m: m.compact(0), "keep=0: keep at least 1 version"),
        (lambda m: m.add(more(["zebra", "two"], None)), "more.csv: row 1 ('zebra') has no label"),
        (lambda m: m.add(more([], [])), "no rows to add"),
        (lambda m: m.add(Rows.from_lists(["x"], ["bread"], ["4"]), keep_ids=True), "rows have the id '4'"),
        (
            lambda m: m.add(Rows.from_lists(["LION", "x"], ["bread"] * 2, "94"), True, None, True),
            "rows have the id '4'",
        ),
        (lambda m: m.open_version(0), "has no version 0; the current one is 1"),
        (lambda m: m.open_version(2), "has no version 2; the current one is 1"),
    ],
)
def test_a_refused_change_changes_nothing(
    tmp_path: Path, change: Callable[[FolderMemory], object], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Rows.from_lists(
        ["lion", "tiger", "oar", "sail", "dough"], ["beasts", "beasts", "boats", "boats", "bread"]
    )
    memory = build(tmp_path / "m", table)
    before = files_of(tmp_path / "m")
    with refused(message):
        change(memory)
    assert files_of(tmp_path / "m") == before
    assert memory.remove(["2", "3"]) == (2, 3, 2)
    assert memory.labels() == ["beasts", "bread"]


def test_a_removed_row_can_be_added_again(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    ids, table, before = memory.rows.ids, memory.rows.select([59]), hits_of(memory.search(QUERIES, 5))
    memory.remove([ids[59]])
    assert memory.add(table, keep_ids=True).added == 1
    assert memory.rows.ids == ids
    assert hits_of(memory.search(QUERIES, 5)) == before


SECRET = "xylophone-quartz-4711"


@pytest.mark.parametrize("keep", [1, 2])
def test_compaction_deletes_removed_texts_for_good(tmp_path: Path, make: MakeRetriever, keep: int) -> None:
    table = Rows.from_lists([*rows(40).texts, f"the {SECRET} plays"], [*(rows(40).labels or []), "boats"])
    memory = build(tmp_path / "m", table, make())
    memory.add(Rows.from_lists(["an otter", "a zebra"], ["beasts", "boats"]))
    memory.remove(["40", "3", "2:0"])
    memory.replace({"5": "boats" if memory.rows.label(4) != "boats" else "bread"})
    written = memory.opened.rows_since(1)
    before = {v: hits_of(FolderMemory(tmp_path / "m", make(), v).search(QUERIES, 6)) for v in (3, 4)}
    assert any(SECRET.encode() in content for content in files_of(tmp_path / "m").values())
    assert memory.compact(keep) == 4 - keep
    assert not any(b"xylophone" in data or b"quartz" in data for data in files_of(tmp_path / "m").values())
    assert sizes(memory) == [(3, 40), (4, 40)][-keep:]
    for version in range(5 - keep, 5):
        opened = FolderMemory(tmp_path / "m", make(), version)
        assert hits_of(opened.search(QUERIES, 6)) == before[version]
    assert memory.opened.rows_since(1).tolist() == written.tolist()
    with pytest.raises(InputError, match=f"was deleted by `zoo memory compact`; the oldest is {5 - keep}"):
        FolderMemory(tmp_path / "m", make(), 2)
    assert memory.compact(keep) == 0
    memory.copy_to(tmp_path / "copy", only_current=True)
    # The memory lives on.
    assert memory.add(Rows.from_lists(["an otter"], ["beasts"])).version == 5
    assert memory.remove(["5:0"]).version == 6
    assert hits_of(memory.search(QUERIES, 6)) == before[4]
    memory.compact(1)
    # On a server, the index of its copy is deleted, too.
    assert hits_of(FolderMemory(tmp_path / "copy", make()).search(QUERIES, 6)) == before[4]
    assert sizes(memory) == [(6, 40)]
    assert [path.name for path in (tmp_path / "m").glob("version-*")] == ["version-6"]
    with pytest.raises(InputError, match="`zoo memory compact` deleted version 1"):
        build(tmp_path / "m", table, make())


def test_compaction_deletes_the_indexes_of_other_rankings(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    build(tmp_path / "m", retriever=EmbeddedRetriever(k1=2.0))
    memory = FolderMemory(tmp_path / "m", EmbeddedRetriever())
    memory.compact()
    assert len(list((tmp_path / "m").glob("version-*/index-*"))) == 1
    assert len(open_memory(str(tmp_path / "m"), EmbeddedRetriever(k1=2.0)).search(["lion"], 3).memories) == 3


def _half_deleted(folder: Path, ignore_errors: bool = False) -> None:
    files = [path for path in [folder / storage.MANIFEST, *folder.rglob("*")] if path.is_file()]
    if not files:  # nothing to delete
        return
    files[0].unlink()
    kill()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("place", "name"),
    [(versions, "write_pointer"), (VectorStore, "_write"), (storage, "delete"), (shutil, "rmtree")],
)
def test_two_kills_in_a_compaction_block_no_later_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, after: bool
) -> None:
    table = Rows.from_lists([*rows(40).texts, SECRET], [*(rows(40).labels or []), "boats"])
    memory = build(tmp_path / "m", table)
    EncodedMemory.open(memory, "e" * 64, _letters)
    memory.remove(["7"])
    memory.remove(["40"])
    before = hits_of(memory.search(QUERIES, 5))
    with monkeypatch.context() as patch:
        killed = _half_deleted if name == "rmtree" else kill_after(getattr(place, name))
        patch.setattr(place, name, killed if after else kill)
        assert in_processes(1, memory.compact, 1) == [-signal.SIGKILL]
        in_processes(1, memory.compact, 1)
    opened = FolderMemory(tmp_path / "m", EmbeddedRetriever())
    assert (opened.version, hits_of(opened.search(QUERIES, 5))) == (3, before)
    assert opened.remove(["8"]).version == 4
    opened.compact(1)
    assert not any(b"xylophone" in content for content in files_of(tmp_path / "m").values())
    assert sizes(opened) == [(4, 38)]
    assert len(EncodedMemory.open(opened, "e" * 64, _never).vectors) == 38
    (lookup,) = (tmp_path / "m").glob("vectors-*/part-*/hashes.npy")
    assert len(np.load(lookup)) == 38


def _change_killed_at(request: int, change: Callable[[FolderMemory], object], memory: FolderMemory) -> None:
    """Make a change in a process that is killed before one of its requests that write."""
    perform, writes, patch = Transport.perform_request, count(), pytest.MonkeyPatch()

    def send(transport: Transport, method: str, target: str, **options: Any) -> Any:
        if (method in ("PUT", "DELETE") or "/_bulk" in target) and next(writes) == request:
            kill()
        return perform(transport, method, target, **options)

    patch.setattr(Transport, "perform_request", send)
    change(FolderMemory(memory.folder, memory.retriever))


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    "change", [lambda m: m.compact(1), lambda m: m.remove(m.rows.ids[37:]), lambda m: m.add(more())]
)
def test_a_kill_at_any_write_to_a_server_loses_nothing(
    change: Callable[[FolderMemory], object], tmp_path: Path, on_server: OnServer
) -> None:
    for request in count():
        retriever = on_server("Elasticsearch")()
        retriever.index_prefix += f"-{request}"
        memory = build(tmp_path / f"{request}", rows(40), retriever)
        ids = memory.rows.ids
        memory.remove(ids[38:39])
        memory.remove(ids[39:])
        (code,) = in_processes(1, _change_killed_at, request, change, memory)
        memory = FolderMemory(memory.folder, retriever)
        if request % 2:
            with suppress(InputError):  # the rows were removed before
                change(memory)
        memory.remove(ids[:1])
        memory.compact(1)
        assert memory.rows.ids[:36] == ids[1:37]
        fresh = built_of(memory, tmp_path / f"fresh-{request}", EmbeddedRetriever)
        check_same(memory.search(QUERIES, 8), fresh.search(QUERIES, 8))
        # That of the first version, which is not deleted, and the present one.
        pattern = f"{retriever.index_prefix}*"
        assert len(retriever.server.call(lambda client, name=pattern: client.indices.get(index=name))) == 2
        if code == 0:
            break
    assert request >= 1


def test_an_index_stays_on_its_server_until_its_change_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delete = Mock(side_effect=InputError("no right to delete"))
    monkeypatch.setattr(EmbeddedRetriever, "is_on_server", True)
    monkeypatch.setattr(EmbeddedRetriever, "delete", delete)
    memory = build(tmp_path / "m", rows(40))
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedRetriever, "update", kill)
        assert [in_processes(1, memory.add, more()) for _ in range(2)] == [[-signal.SIGKILL]] * 2
    memory.add(more())
    assert (delete.called, len([*memory.folder.glob("version-*")])) == (False, 2)
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedRetriever, "update", kill)
        in_processes(1, memory.remove, memory.rows.ids[:1])
    assert memory.remove(memory.rows.ids[1:2]).version == 3
    assert "the change is made" in caplog.text
    with refused("no right to delete"):
        memory.compact()


def test_leftovers_of_killed_changes_are_deleted_by_the_next(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    for name in ("version-2", "version-7", ".version-1.deleted", ".version-2.partial", ".version-3.replaced"):
        (tmp_path / "m" / name).mkdir()
        (tmp_path / "m" / name / "rows-1-0.arrow").write_bytes(b"")
    assert FolderMemory(tmp_path / "m", EmbeddedRetriever()).version == 1
    assert memory.remove(memory.rows.ids[:1]).version == 2
    left = {path.name for path in (tmp_path / "m").iterdir() if path.is_dir()}
    assert left == {"version-1", "version-2"}


def test_versions_share_the_files_of_unchanged_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "BLOCK", 16)
    monkeypatch.setattr(versions, "_FEWEST_SHARED", 8)
    memory = build(tmp_path / "m", rows(64))

    def files() -> dict[str, int]:
        folder = tmp_path / "m" / f"version-{memory.version}"
        return {path.name: path.stat().st_nlink for path in sorted(folder.glob("*.arrow"))}

    assert files() == {f"rows-1-{number}.arrow": 1 for number in range(4)}
    ids = memory.rows.ids
    memory.remove([ids[20]])
    assert files() == {"rows-1-0.arrow": 2, "rows-1-2.arrow": 2, "rows-1-3.arrow": 2, "rows-2-1.arrow": 1}
    # A file of few rows takes in those of the next one.
    memory.remove(ids[32:45])
    assert files() == {"rows-1-0.arrow": 3, "rows-2-1.arrow": 2, "rows-3-2.arrow": 1, "rows-3-3.arrow": 1}
    memory.add(Rows.from_lists(["a zebra"], ["beasts"]))
    memory.replace({ids[0]: "boats" if memory.rows.label(0) != "boats" else "bread"})
    fresh = build(tmp_path / "n", Rows(memory.rows.table, "fresh"))
    assert memory.fingerprint == fresh.fingerprint
    assert hits_of(memory.search(QUERIES, 9)) == hits_of(fresh.search(QUERIES, 9))
    assert memory.opened.rows_since(1).tolist() == [0, 50]
    memory.compact()
    assert set(files().values()) == {1}
    assert len(FolderMemory(tmp_path / "m", EmbeddedRetriever())) == 51


def _letters(texts: list[str]) -> NDArray[np.float32]:
    vectors = np.array([[len(text), text.count("e"), 1] for text in texts], np.float32).reshape(len(texts), 3)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _never(texts: list[str]) -> NDArray[np.float32]:
    raise AssertionError(f"{len(texts)} texts are encoded again")


def test_vectors_follow_their_rows(tmp_path: Path) -> None:
    memory = build(tmp_path / "m")
    EncodedMemory.open(memory, "e" * 64, _letters)
    memory.remove(memory.rows.ids[10:13])
    np.testing.assert_array_equal(
        EncodedMemory.open(memory, "e" * 64, _never).vectors, _letters(list(memory.rows.texts))
    )
    memory.replace(Rows.from_lists(["a new and longer text"], ["boats"], [memory.rows.ids[20]]))
    with pytest.raises(AssertionError, match="1 texts are encoded again"):
        EncodedMemory.open(memory, "e" * 64, _never)
    for keep in (3, 2, 1):
        vectors = EncodedMemory.open(memory, "e" * 64, _letters).vectors
        np.testing.assert_array_equal(vectors, _letters(list(memory.rows.texts)))
        memory.compact(keep)
        np.testing.assert_array_equal(EncodedMemory.open(memory, "e" * 64, _never).vectors, vectors)


def test_vectors_of_many_changes_are_few_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, store = build(tmp_path / "m"), store_folder(tmp_path / "m", "e" * 64)
    parts = []
    for number in range(40):
        memory.add(Rows.from_lists([f"lion {number}"], ["beasts"]))
        EncodedMemory.open(memory, "e" * 64, _letters)
        parts.append([*store.glob("part-*")])
    assert max(map(len, parts)) == MOST_PARTS + 1
    assert parts[0][0] in parts[-1], "a large part is not written again"
    monkeypatch.setattr(versions, "MOST_PARTS", 1)
    for killed in (kill, kill_after(storage.delete)):
        with monkeypatch.context() as patch:
            patch.setattr(storage, "delete", killed)
            assert in_processes(1, memory.remove, ["1"]) == [-signal.SIGKILL]
        vectors = EncodedMemory.open(memory, "e" * 64, _never).vectors
        np.testing.assert_array_equal(vectors, _letters(list(memory.rows.texts)))
    (store / ".part-1.replaced").mkdir()  # of a killed process
    memory.compact()
    assert len([*store.glob("*part*")]) == 2, "a part and its lock"
    assert not EncodedMemory.open(memory, "e" * 64, _never).vectors.flags.owndata, "mapped"


def test_removal_of_many_rows(tmp_path: Path) -> None:
    memory = build(tmp_path / "m", rows(3000))
    odd = memory.rows.ids[1::2]
    memory.remove(odd)
    fresh = built_of(memory, tmp_path / "n", EmbeddedRetriever)
    assert hits_of(memory.search(QUERIES, 20)) == hits_of(fresh.search(QUERIES, 20))
    assert sizes(memory) == [(1, 3000), (2, 1500)]
