"""A folder is whole or absent, whatever happens while it is written."""

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from datamodules.core import storage
from datamodules.core.errors import InputError
from tests.datamodules.checks import kill, refused
from tests.datamodules.corpus import in_processes


def build(folder: Path, fingerprint: str = "f", text: str = "some words") -> Path:
    with storage.lock(folder), storage.new_folder(folder, fingerprint, rows=2) as partial:
        (partial / "words.txt").write_text(text)
        np.save(partial / "numbers.npy", np.arange(5))
    return folder


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_a_built_folder_is_whole_and_describes_itself(tmp_path: Path) -> None:
    folder = build(tmp_path / "a")
    manifest = storage.check_folder(folder, "f", contents=True)
    assert manifest["rows"] == 2
    assert manifest["files"]["words.txt"]["bytes"] == len("some words")
    assert set(manifest["files"]) == {"words.txt", "numbers.npy"}
    assert storage.is_whole(folder, "f")
    assert not storage.is_whole(tmp_path / "b", "f")
    assert entries(tmp_path) == {"a"}


@pytest.mark.parametrize(
    ("name", "contents", "problem"),
    [
        ("", None, "a: does not exist"),
        (storage.MANIFEST, None, f"a: is unfinished \\(it has no {storage.MANIFEST}\\)"),
        *(
            (storage.MANIFEST, contents, f"a/{storage.MANIFEST}: damaged")
            for contents in ("", "{", "[]", '{"files": {"a": 1}}', '{"fingerprint": "f"}')
        ),
        ("words.txt", None, "a/words.txt: damaged .is missing"),
        ("words.txt", "some word", "a/words.txt: damaged .has 9 bytes instead of 10"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, contents: str | None, problem: str) -> None:
    folder = build(tmp_path / "a")
    with pytest.raises(InputError, match="other texts or settings"):
        storage.check_folder(folder, "g")
    if contents is None:
        (folder / name).rename(tmp_path / "moved")
    else:
        (folder / name).write_text(contents)
    with refused(match=problem):
        storage.check_folder(folder, "f")
    assert not storage.is_whole(folder, "f")


@pytest.mark.parametrize("name", ["words.txt", "numbers.npy"])
def test_a_flipped_bit_is_named(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = build(tmp_path / "a")
    contents = bytearray((folder / name).read_bytes())
    contents[-3] ^= 0b100
    (folder / name).write_bytes(contents)
    storage.check_folder(folder)  # sizes alone are right
    with refused(folder / name, "checksum"):
        storage.check_folder(folder, contents=True)
    assert not storage.is_whole(folder, "f")
    assert f"{folder / name}: damaged (its checksum has changed); it is built again" in caplog.text


def test_every_bit_of_a_manifest_counts(tmp_path: Path) -> None:
    folder = build(tmp_path / "a")
    whole = (folder / storage.MANIFEST).read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        (folder / storage.MANIFEST).write_bytes(damaged)
        try:
            manifest = storage.check_folder(folder, "f")
        except InputError:
            continue
        assert manifest == json.loads(whole)  # only white space has changed


def test_contents_differ_although_size_and_time_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("one")
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    first, first_folder = storage.contents_of(file), storage.contents_of(tmp_path)
    file.write_text("two")
    os.utime(file, ns=times)
    assert storage.contents_of(file) != first
    assert storage.contents_of(tmp_path) != first_folder
    file.write_text("one")
    assert (storage.contents_of(file), storage.contents_of(tmp_path)) == (first, first_folder)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more").write_text("")
    assert storage.contents_of(tmp_path) != first_folder
    assert storage.contents_of(tmp_path / "gone") is storage.contents_of(None) is None


def _interrupt(folder: Path, fingerprint: str, end: Callable[[], object]) -> None:
    with storage.lock(folder), storage.new_folder(folder, fingerprint) as partial:
        (partial / "words.txt").write_text("some")
        end()


@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_while_building_leaves_what_was_there(tmp_path: Path, old: str | None) -> None:
    folder = tmp_path / "a"
    if old:
        build(folder, old)
    with pytest.raises(RuntimeError, match="in the middle"):
        _interrupt(folder, "new", Mock(side_effect=RuntimeError("in the middle")))
    assert entries(tmp_path) == ({"a"} if old else set())
    assert storage.is_whole(folder, "old") == bool(old)
    build(folder, "new", "other words")
    assert storage.is_whole(folder, "new")
    assert (folder / "words.txt").read_text() == "other words"


def test_a_killed_build_leaves_no_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    assert in_processes(1, _interrupt, folder, "f", kill) == [-signal.SIGKILL]
    assert entries(tmp_path) != set()  # the partial folder
    assert not storage.is_whole(folder, "f")
    # The dead process's lock is free, and its partial folder is deleted.
    build(folder)
    assert (folder / "words.txt").read_text() == "some words"
    assert entries(tmp_path) == {"a"}


def _killed_while_replacing(folder: Path, moves: int) -> None:
    moved: list[Path] = []

    def rename(path: Path, target: Path) -> None:
        if len(moved) == moves:
            kill()
        os.rename(path, target)
        moved.append(path)

    def rmtree(path: Path, **_: object) -> None:
        if len(moved) == 2:
            kill()

    Path.rename, storage.shutil.rmtree = rename, rmtree  # type: ignore[method-assign,assignment]
    build(folder, "new", "other words")


@pytest.mark.parametrize(("moves", "kept"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_killed_replacement_leaves_the_old_or_new_folder(tmp_path: Path, moves: int, kept: str) -> None:
    folder = build(tmp_path / "a", "old")
    assert in_processes(1, _killed_while_replacing, folder, moves) == [-signal.SIGKILL]
    with storage.lock(folder):
        assert storage.is_whole(folder, kept)
    build(folder, "new", "other words")
    assert entries(tmp_path) == {"a"}


@pytest.mark.parametrize(
    ("number", "message"),
    [
        *((number, "disk is full") for number in (errno.ENOSPC, errno.EDQUOT)),
        *((number, "no permission") for number in (errno.EACCES, errno.EROFS)),
    ],
)
def test_a_disk_that_cannot_be_written_is_one_line_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    monkeypatch.setattr(storage.os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
    with refused(tmp_path / "a", message):
        build(tmp_path / "a")
    monkeypatch.undo()
    assert entries(tmp_path) == set()
    assert storage.is_whole(build(tmp_path / "a"), "f")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_short_write_of_numpy_is_a_full_disk(tmp_path: Path) -> None:
    # It carries no error number.
    with pytest.raises(InputError, match="disk is full"), storage.named_disk_errors(tmp_path):
        np.zeros(1 << 16).tofile("/dev/full")


def test_other_errors_are_not_changed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="went wrong"), storage.named_disk_errors(tmp_path):
        raise OSError(errno.EIO, "went wrong")


def test_a_file_in_the_place_of_the_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with refused(tmp_path / "cache", "a file is in its way"):
        build(tmp_path / "cache" / "a")


def _count(folder: Path) -> None:
    for _ in range(20):
        with storage.lock(folder):
            path = folder.parent / "count"
            path.write_text(str(int(path.read_text()) + 1))


def test_a_lock_admits_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    assert in_processes(3, _count, tmp_path / "a") == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "60"


def test_a_fingerprint_depends_on_values_and_not_on_their_order() -> None:
    assert storage.fingerprint_of({"a": 1, "b": [2]}) == storage.fingerprint_of({"b": [2], "a": 1})
    different = [{"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {"a": [1]}, {"a": None}]
    assert len({storage.fingerprint_of(description) for description in different}) == len(different)


def test_the_cache_folder_is_the_option_then_the_environment_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ZOO_CACHE_DIR", raising=False)
    assert storage.cache_folder(None) == tmp_path / "home" / ".cache" / "memory-zoo"
    assert storage.cache_folder("~/mine") == tmp_path / "home" / "mine"
    monkeypatch.setenv("ZOO_CACHE_DIR", str(tmp_path / "environment"))
    assert storage.cache_folder(None) == tmp_path / "environment"
    assert storage.cache_folder(tmp_path / "option") == tmp_path / "option"
    monkeypatch.setattr(Path, "expanduser", Mock(side_effect=RuntimeError("no home directory")))
    with pytest.raises(InputError, match=r"no home folder/a: .* Choose another folder .*--data\.cache_dir"):
        build(storage.cache_folder(None) / "a")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which no file can be created")
def test_a_lock_that_cannot_be_created_is_an_error() -> None:
    with refused("/proc/self/x: can't be made"), storage.lock(Path("/proc/self/x")):
        pass
