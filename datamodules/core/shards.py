"""Shards: consecutive parts of a table for several processes or machines, and the output that their parts become."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from datamodules.core.errors import DamagedError, InputError, excerpt
from datamodules.core.storage import (
    check_folder,
    contents_of,
    fingerprint_of,
    is_whole,
    lock,
    named_disk_errors,
    new_folder,
    read_checked,
    with_checksum,
    write_json,
)

ItemT = TypeVar("ItemT")

_EXAMPLE = "write a number from 1 to the number of shards, such as 3/16, or auto"
#: Variables by which a launcher numbers its processes, from which Lightning would expect one training.
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_NTASKS")
#: The files and folders in a folder of parts; nothing else in it is deleted.
_OWN_NAMES = re.compile(r"\d+-of-\d+|rows-[0-9a-f]{16}|\..+\.(lock|partial)")


@dataclass(frozen=True)
class Shard:
    """One of several consecutive parts of a table."""

    #: from 1.
    number: int
    count: int

    @classmethod
    def parse(cls, option: str) -> Shard:
        """Return the shard of `--shard`: `3/16`, or `auto` for that of a launcher's process.

        Raises an `InputError` for anything else, and for `auto` if the variables of no launcher are set.
        """
        if option == "auto":
            return _launched()
        match = re.fullmatch(r"(\d+)/(\d+)", option)
        shard = None if match is None else cls(int(match[1]), int(match[2]))
        if shard is None or not 1 <= shard.number <= shard.count:
            raise InputError(f"--shard {excerpt(option)}: {_EXAMPLE}")
        return shard

    @override
    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def rows(self, total: int, block: int) -> range:
        """Return the rows of this shard among `total` rows that one process computes in blocks of `block` rows.

        Blocks stay whole: the results are then those of one process, bit by bit. There may be fewer blocks than shards.
        """
        blocks = -(-total // block)
        first, end = ((number * blocks // self.count) * block for number in (self.number - 1, self.number))
        return range(min(first, total), min(end, total))

    def of(self, items: Iterable[ItemT], total: int, block: int) -> Iterator[ItemT]:
        """Yield the items of this shard; see `rows`."""
        rows = self.rows(total, block)
        return islice(items, rows.start, rows.stop)


#: A table that is not cut.
WHOLE = Shard(1, 1)


def _launched() -> Shard:
    """Return the shard of this process of torchrun, of a SLURM array, or of srun, in this order."""
    if _are_set("RANK", "WORLD_SIZE"):
        number, count = _variable("RANK") + 1, _variable("WORLD_SIZE")
    elif _are_set("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"):
        step = _variable("SLURM_ARRAY_TASK_STEP") if _are_set("SLURM_ARRAY_TASK_STEP") else 1
        number = (_variable("SLURM_ARRAY_TASK_ID") - _variable("SLURM_ARRAY_TASK_MIN")) // max(step, 1) + 1
        count = _variable("SLURM_ARRAY_TASK_COUNT")
    elif _are_set("SLURM_PROCID", "SLURM_NTASKS"):
        number, count = _variable("SLURM_PROCID") + 1, _variable("SLURM_NTASKS")
    else:
        raise InputError(
            "--shard auto: no launcher has set RANK and WORLD_SIZE (torchrun), SLURM_ARRAY_TASK_ID, _MIN and _COUNT (a"
            " job array), or SLURM_PROCID and SLURM_NTASKS (srun); write the shard, such as --shard 3/16"
        )
    if not 1 <= number <= count:
        raise InputError(
            f"--shard auto: the launcher numbers this process {number} of {count}; a job array must have no gaps, or"
            " write --shard $SLURM_ARRAY_TASK_ID/16"
        )
    return Shard(number, count)


def _are_set(*names: str) -> bool:
    return all(os.environ.get(name) for name in names)


def _variable(name: str) -> int:
    if not (value := os.environ[name]).isdecimal():
        raise InputError(f"--shard auto: {name}={excerpt(value)} is no number; write --shard 3/16")
    return int(value)


def hide_launcher() -> None:
    """Unset the variables of a launcher: Lightning would take its processes for those of one training."""
    for name in _LAUNCHERS:
        os.environ.pop(name, None)


class UnfinishedError(Exception):
    """Other shards have not finished their parts of an output yet."""

    def __init__(self, output: Path, missing: Sequence[Path]) -> None:
        """Name the output, and the files of the parts that are missing."""
        super().__init__(f"{output}: {len(missing)} parts are missing")
        self.output, self.missing = output, missing

    def is_over(self) -> bool:
        """Return True if the other shards have finished since."""
        return self.output.exists() or all(part.exists() for part in self.missing)


class Parts:
    """The parts of one output, the folders `OUTPUT.parts/3-of-16`: each is complete or absent.

    The shard that finishes last joins them, and deletes them. Parts with another fingerprint, or of another number of
    shards, are made again: the output never has rows of both.
    """

    def __init__(self, output: Path, shard: Shard, fingerprint: str) -> None:
        """Name the parts; the fingerprint identifies the table and everything else that the output depends on."""
        self.output, self.shard = output, shard
        self.fingerprint = fingerprint_of({"output": fingerprint, "shards": shard.count})
        self.folder = output.with_name(f"{output.name}.parts")
        # A shard that is started again after the merge does nothing.
        self._mark = output.with_name(f".{output.name}.merged")

    def run(self, save: Callable[[Path], None], join: Callable[[Sequence[Path]], None]) -> list[int]:
        """Let `save` write this shard's part into a folder, unless it is done; return the shards that are missing.

        If none is missing, `join` writes the output from the folders of all parts, in order. A process that is killed
        while it joins leaves all parts to the next one.
        """
        with named_disk_errors(self.folder, "--output"):
            self.folder.mkdir(parents=True, exist_ok=True)
        own = self._part(self.shard.number)
        with lock(own):
            if not self._is_merged() and not self._is_whole(own):
                with new_folder(own, self.fingerprint) as partial, named_disk_errors(own, "--output"):
                    save(partial)
        with lock(self.folder):
            if not self._is_merged():
                parts = [self._part(number) for number in range(1, self.shard.count + 1)]
                # Checksums are compared once, before the parts are joined.
                for is_there in (self._is_there, self._is_whole):
                    if missing := [number for number, part in enumerate(parts, 1) if not is_there(part)]:
                        return missing
                join(parts)
                mark = {"fingerprint": self.fingerprint, "contents": contents_of(self.output)}
                write_json(self._mark, with_checksum(mark), "--output")
            self._delete()
        return []

    def _part(self, number: int) -> Path:
        return self.folder / f"{number}-of-{self.shard.count}"

    def _is_there(self, part: Path) -> bool:
        with suppress(InputError, FileNotFoundError):  # another process replaces or deletes it just now
            check_folder(part, self.fingerprint)
            return True
        return False

    def _is_whole(self, part: Path) -> bool:
        with suppress(InputError, FileNotFoundError):  # a part of another table, model or options
            return is_whole(part, self.fingerprint)
        return False

    def _is_merged(self) -> bool:
        if not self._mark.exists() or not self.output.exists():
            return False
        try:
            mark = read_checked(self._mark, "")
        except DamagedError:
            return False
        return mark == {"fingerprint": self.fingerprint, "contents": contents_of(self.output)}

    def _delete(self) -> None:
        for path in self.folder.glob("*"):  # none, if another process has deleted the folder
            if _OWN_NAMES.fullmatch(path.name):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        with suppress(OSError):  # a process waits for its lock, or the user has put a file here
            self.folder.rmdir()


def describe_missing(shard: Shard, missing: Sequence[int]) -> str:
    """Return a line about a shard that is done while others are not."""
    numbers = excerpt(", ".join(map(str, missing)))
    return f"shard {shard} is done; missing: {numbers}; the last of them merges all"
