"""Small file systems that are really full."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from datamodules.core.errors import InputError
from tests.datamodules.checks import files_of
from tests.datamodules.corpus import in_processes
from tests.faults import campaigns

#: Commands that write, with the file or folder that they make; each runs in a folder with a run and its tables.
COMMANDS: dict[str, tuple[list[str], str]] = {
    "export": (["export", "run", "exported"], "exported"),
    "predict": (["predict", "--ckpt_path=run", "--input=more.csv", "--output=out.jsonl"], "out.jsonl"),
    "test": (["test", "--ckpt_path=run", "--data.test_file=more.csv", "--output=out.json"], "out.json"),
    "encode": (["encode", "--ckpt_path=run", "--input=more.csv", "--output=vectors"], "vectors"),
    "memory add": (["memory", "add", "run", "new.csv"], "run/model/memory"),
    "memory tune": (["memory", "tune", "ensemble", "more.csv"], "ensemble/model/state.json"),
}
_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS


def mount(folder: Path, size: int) -> bool:
    """Mount a file system of this size, which this process and its children see; False where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NAMESPACE) != 0:
        return False
    private = ["mount", "--make-rprivate", "/"]
    small = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return all(
        subprocess.run(each, check=False, capture_output=True).returncode == 0 for each in (private, small)
    )


def can_mount() -> bool:
    """Return whether this machine allows `mount`, tried in a process of its own."""
    return in_processes(1, lambda: sys.exit(not mount(Path("/tmp"), 1 << 20))) == [0]


def real_disks(folder: Path) -> campaigns.Campaign | None:
    """A command on a small file system is refused in one line, leaves whole files, and ends well with more space."""
    if not can_mount():
        print("real_disks: this machine allows no mount")
        return None
    whole = campaigns.made_run(folder / "whole", has_ensemble=True)
    (whole / "new.csv").write_text("text,label\na new apple of copper,fruit\n")
    used = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())

    def case(random: campaigns.Random, work: Path) -> Callable[[], Any]:
        return lambda: use_a_small_disk(whole, work, used, random)

    return campaigns.Campaign(case, is_slow=True)


def use_a_small_disk(whole: Path, work: Path, used: int, random: campaigns.Random) -> None:
    """Run one command on a disk with a random number of free bytes, and again with enough."""
    if not mount(work, 2 * used + (8 << 20)):
        raise RuntimeError("no mount")
    shutil.copytree(whole, work, dirs_exist_ok=True)
    names = [*COMMANDS, "fit", "serve"]
    name = names[int(random.integers(len(names)))]
    command, made = COMMANDS.get(name, (campaigns.fit_options(work, "second"), "second"))
    use = partial(campaigns.zoo_run, work, *command)
    if name == "serve":
        process, address = campaigns.served(work / "run")
        use = partial(add_to_a_server, address)
    before, predictions = files_of(work), campaigns.predicted(work / "run")
    free = os.statvfs(work)
    filler = work / "filler"
    left = int(random.integers(8 << 10, 400 << 10))
    filler.write_bytes(bytes(max(free.f_bavail * free.f_frsize - left, 0)))
    try:
        use()
    except InputError as error:
        if "disk is full" not in str(error) and "No space left" not in str(error):
            raise RuntimeError(f"{name}: {error}") from error
        changed = {path for path, contents in before.items() if path.read_bytes() != contents}
        if changed or campaigns.predicted(work / "run") != predictions:
            raise RuntimeError(f"{name}: changed {sorted(changed)}") from error
        # A folder of a run may exist: the next try goes on in it, or replaces it.
        if name in ("export", "predict", "test", "encode") and (work / made).exists():
            raise RuntimeError(f"{name}: left {made}") from error
    filler.unlink()
    if name != "export" or not (work / made).exists():
        use()
    if name == "serve":
        process.kill()


def add_to_a_server(address: str) -> None:
    """Add a row to the memory of a served model, which answers afterwards in either case."""
    try:
        campaigns.post(f"{address}/memory/add", {"rows": [{"text": "a new apple", "label": "fruit"}]})
    except HTTPError as error:
        if error.code != HTTPStatus.INSUFFICIENT_STORAGE:
            raise
        raise InputError(json.load(error)["detail"]) from error
    finally:
        campaigns.post(f"{address}/predict", {"texts": campaigns.TEXTS})
