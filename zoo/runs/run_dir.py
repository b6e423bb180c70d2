"""The folder of a run: one fit at a time, and earlier runs are moved aside."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from filelock import Timeout

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of, lock_file, named_disk_errors
from datamodules.core.types import PlainDict
from zoo.runs.configs import contents

log = logging.getLogger("zoo")

_LOCK = ".lock"
#: Files of a run that was killed before it started.
_BEFORE_START = (_LOCK, "wandb_id")


def _check(folder: Path, resumes: bool) -> None:
    """Raise an `InputError` for a file or a folder with files of others, unless its run is resumed."""
    with named_disk_errors(folder, "--run_dir"):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--run_dir {folder}: is a file; name a folder")
        if resumes or _is_empty(folder):
            return
    is_run = {"model", "data", "trainer"} <= contents(folder / "config.yaml").keys()
    if not (is_run or any((folder / name).is_file() for name in ("checkpoints/last.ckpt", "result.json"))):
        raise InputError(f"--run_dir {folder}: holds files, but no run of `zoo fit`; name another folder")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise InputError(
            f"--run_dir {folder}: is the folder that you are in, so its run can't be moved aside; name another"
        )


def setting_of(config: PlainDict) -> str:
    """Return the fingerprint of the model, the data and the trainer of a configuration; equal for all seeds."""
    setting = {name: config[name] for name in ("model", "data", "trainer")}
    trainer = {name: value for name, value in setting["trainer"].items() if name != "logger"}
    return fingerprint_of({**setting, "trainer": trainer})


@contextmanager
def locked_run_dir(folder: Path, resumes: bool) -> Iterator[None]:
    """Lock the folder during a run; an earlier run is moved aside, but back if this one is refused before it starts."""
    _check(folder, resumes)
    was_there = folder.is_dir()
    with named_disk_errors(folder, "--run_dir"):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        locks.enter_context(_alone(folder))
        earlier = None if resumes or _is_empty(folder) else _move_aside(folder)
        try:
            if earlier is not None:
                folder.mkdir()
                locks.enter_context(_alone(folder))
            yield
        finally:
            # The configuration is the first file that a run writes when it starts.
            if not resumes and not (folder / "config.yaml").exists():
                _undo(folder, was_there, earlier)
            elif earlier is not None:
                log.info("%s held an earlier run; it is now %s", folder, earlier)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        with named_disk_errors(folder, "--run_dir"):
            held = lock_file(folder / _LOCK)
            held.acquire(timeout=0)
    except Timeout:
        raise InputError(f"--run_dir {folder}: another `zoo fit` works there; name another folder") from None
    try:
        for partial in (folder / "checkpoints").glob(".*.ckpt.*"):
            partial.unlink()  # of a process that was killed while it wrote
        yield
    finally:
        held.release()


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or all(path.name in _BEFORE_START for path in folder.iterdir())


def _move_aside(folder: Path) -> Path:
    folder = Path(os.path.normpath(folder.absolute()))
    names = (folder.with_name(f"{folder.name}.{number}") for number in count(1))
    kept = next(name for name in names if not name.exists())
    with named_disk_errors(folder, "--run_dir"):
        return folder.rename(kept)


def _undo(folder: Path, was_there: bool, earlier: Path | None) -> None:
    """Restore the folder of a run that did not start."""
    if was_there and earlier is None:
        for path in folder.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)
    if earlier is not None:
        earlier.rename(folder)
