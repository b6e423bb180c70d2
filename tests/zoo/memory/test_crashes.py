"""`zoo memory add` and `tune` that are killed or fill the disk at any moment: the same command again finishes."""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import zoo
from tests.datamodules.checks import files_of
from tests.datamodules.corpus import in_processes
from tests.zoo.conftest import Edit, Fit, Zoo, done, sentences, write_table
from zoo.cli.main import main
from zoo.tasks.classification.predictor import Prediction

#: System calls at each of which a process is killed, or finds the disk full.
CALLS = ("fsync", "rename", "replace", "link", "mkdir", "rmdir", "unlink")
TEXTS = ["guitar", "a plum", "old iron in the rain", "xyzzy"]
KILLED = 77

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def _exit_code(arguments: list[str], number: int, is_full: bool) -> int | None:
    return in_processes(1, _run_child, arguments, number, is_full)[0]


def _run_child(arguments: list[str], number: int, is_full: bool) -> NoReturn:
    """Run a command in a process that dies at its n-th system call, or from then on has no space left on the disk."""
    count = 0

    def failing(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count >= number and is_full and name not in ("unlink", "rmdir"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))
            if count == number and not is_full:
                os._exit(KILLED)
            return call(*args, **options)

        return wrapper

    for name in CALLS:
        setattr(os, name, failing(name, getattr(os, name)))
    os._exit(main(arguments))


def _failures(folder: Path, command: list[str], is_full: bool = False, step: int = 1) -> Iterator[int | None]:
    """Let a command fail at each `step`-th of its system calls, and yield its exit codes; then restore the folder."""
    backup = shutil.copytree(folder, folder.with_name("backup"))
    number = 1
    while (code := _exit_code(command, number, is_full)) != 0:
        yield code
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        number += step
    assert number > 2


def _predict(folder: Path) -> list[Prediction]:
    return zoo.load(folder).predict(TEXTS)


@pytest.fixture
def grown(shared_run: Fit, tmp_path: Path) -> tuple[Path, list[str]]:
    """A run, and the arguments that add rows with a new label to its memory."""
    folder = shared_run(sentences(90, seed=1), "--model.members=[lexical,lexical_vote]")
    rows = [("guitar solo", "music"), ("guitar and drum", "music"), ("plum jam", "fruit")]
    more = write_table(tmp_path / "more.csv", rows)
    return folder, ["memory", "add", str(folder), str(more), "--new_labels=true"]


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_an_addition_that_is_killed_or_fills_the_disk(
    times: int, is_full: bool, grown: tuple[Path, list[str]], zoo_command: Zoo, edit: Edit, tmp_path: Path
) -> None:
    folder, add = grown
    if times == 2:
        edit("add", folder, [("a fig", "fruit"), ("grey zinc", "metal")])
    before = _predict(folder)
    reference = shutil.copytree(folder, tmp_path / "reference")
    assert main([*add[:2], str(reference), *add[3:]]) == 0
    after = _predict(reference)
    assert after[0].label == "music" != before[0].label
    for code in _failures(folder, add, is_full):
        assert code == (2 if is_full else KILLED)
        assert _predict(folder) in (before, after)
        done(zoo_command("memory", "show", folder))
        done(zoo_command(*add))
        assert _predict(folder) == after
    assert zoo.load(folder).memory.version == times + 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compact", "remove"])
def test_a_change_that_is_killed_twice_blocks_none(
    command: str, grown: tuple[Path, list[str]], zoo_command: Zoo, edit: Edit
) -> None:
    folder, add = grown
    done(zoo_command(*add))
    change = ["memory", command, str(folder), *(["--ids=[3]"] if command == "remove" else [])]
    for code in _failures(folder, change):
        assert code == KILLED
        assert _exit_code(change, 2, is_full=False) in (KILLED, 0, 2)  # 2: the row was removed before
        assert "1 new" in edit("add", folder, [("a fig", "fruit")])
        done(zoo_command("memory", "compact", folder))
        hidden = (folder / "model" / "memory").glob(".*")
        assert [each.name for each in hidden if each.suffix != ".lock"] == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--refit=true"]])
def test_tuning_that_is_killed(
    options: list[str], grown: tuple[Path, list[str]], zoo_command: Zoo, tmp_path: Path
) -> None:
    folder, add = grown
    done(zoo_command(*add))
    before = zoo.load(folder).model.network.pool.describe()
    predictions = _predict(folder)
    dev = write_table(tmp_path / "dev.csv", sentences(30, seed=79))
    tune = ["memory", "tune", str(folder), str(dev), *options]
    for code in _failures(folder, tune):
        assert code == KILLED
        weights = zoo.load(folder).model.network.pool.describe()
        assert weights != before or _predict(folder) == predictions
        done(zoo_command(*tune))
        model = zoo.load(folder).model
        assert model.network.pool.describe() != before
        # Killed after its last step, the syncing of the folder, the command has done its work.
        assert weights in (before, model.network.pool.describe())
        assert model.network.fitted_version == (2 if options else 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
def test_a_preview_that_is_killed_or_fills_the_disk_changes_nothing(
    is_full: bool, grown: tuple[Path, list[str]], zoo_command: Zoo, tmp_path: Path
) -> None:
    folder, add = grown
    before, texts = _predict(folder), write_table(tmp_path / "texts.csv", [(text, "fruit") for text in TEXTS])
    files = files_of(folder)
    for code in _failures(folder, [*add, "--preview", str(texts)], is_full, step=3):  # most make links
        assert code == (2 if is_full else KILLED)
        assert files.items() <= files_of(folder).items()
        assert "version 2, 75 memories, 3 new" in done(zoo_command(*add)).out
        done(zoo_command("memory", "compact", folder))
        assert [*folder.rglob(".preview-*.partial")] == []
    assert (zoo.load(folder).memory.version, _predict(folder)) == (1, before)


def test_foreign_and_damaged_files_nearby(grown: tuple[Path, list[str]], zoo_command: Zoo) -> None:
    folder, add = grown
    model, last = folder / "model", folder / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    last.with_name("mine.ckpt").write_text("not a checkpoint")
    (model / "notes").mkdir()
    (model / "notes" / "memory.json").write_text("{}")
    (model / "weights.txt").write_text("mine")
    (model / "memory" / ".version-2.partial" / "index").mkdir(parents=True)  # an unfinished copy
    done(zoo_command(*add))
    done(zoo_command("memory", "show", folder))
    assert _predict(folder)[0].label == "music"
