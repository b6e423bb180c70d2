"""Claims of processes on runs in a folder that machines share: files whose age others can see.

A claim is a file next to the run's folder, `seed-1.claim-1`. Its holder creates it and updates its modification time
while the run lasts. If the holder has died or was silent for `STALE` seconds, another process takes the run over by
creating the next number. The highest number holds the run. Only one process can create a number: exclusive creation is
atomic on local disks, NFS from version 3 on, Lustre and GPFS. On other file systems (buckets that are mounted as
folders) two machines may begin the same run: divide the table with --rows there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from datamodules.core.errors import excerpt
from datamodules.core.storage import machine

#: Seconds between two updates of a claim, and after the last one until others take the run over.
HEARTBEAT, STALE = 30.0, 600.0


class ClaimLost(Exception):
    """Another machine has taken the run over; this one must not write its results."""


class Claim:
    """A run that this process holds."""

    def __init__(self, file: Path, text: str) -> None:
        self.file, self.text = file, text

    def renew(self) -> None:
        """Keep the claim from becoming stale; raise `ClaimLost` if another process has taken the run over."""
        try:
            if self.file.read_text(encoding="utf-8") != self.text:
                raise ClaimLost
            os.utime(self.file)
        except FileNotFoundError:
            raise ClaimLost from None
        except OSError:
            pass  # a network file system that does not answer for a while


def clock(folder: Path) -> float:
    """Return the time of a folder's file system, in seconds: the clocks of the machines that share it may differ."""
    file = folder / ".clock"
    try:
        file.touch()
        return file.stat().st_mtime
    except OSError:  # a folder that `--plan` may only read
        return time.time()


@contextmanager
def claimed(run: Path) -> Iterator[Claim | None]:
    """Hold a run, named by its folder, until the block ends; yield None if another process holds it."""
    number = max(_claims(run), default=0)
    # The successor of the claim that was judged: of several processes that judge it, one creates it.
    claim = None if _holder(run, number) is not None else _create(run, number + 1)
    try:
        yield claim
    finally:
        if claim is not None:
            claim.file.unlink(missing_ok=True)


def holder(run: Path) -> str | None:
    """Return the host name of the process that holds a run; None if the run is free."""
    return _holder(run, max(_claims(run), default=0))


def _holder(run: Path, number: int) -> str | None:
    try:
        with _file(run, number).open(encoding="utf-8") as file:  # a network file system reads its times again
            updated = os.fstat(file.fileno()).st_mtime
            claim = json.loads(file.read(10_000))
            host, of, process = str(claim["host"]), claim["machine"], int(claim["process"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        host, of, process = "another machine", None, 0  # between its creation and its first byte
    is_dead = of == machine() and not _is_alive(process)
    return None if is_dead or clock(run.parent) - updated > STALE else excerpt(host)


def _create(run: Path, number: int) -> Claim | None:
    """Create a claim and remove the older ones; return None if another process was faster."""
    file = _file(run, number)
    text = json.dumps({"host": socket.gethostname(), "machine": machine(), "process": os.getpid()})
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        return None
    if max(_claims(run), default=0) > number:  # taken over by another process since the claims were listed
        file.unlink(missing_ok=True)
        return None
    for older in _claims(run):
        if older < number:
            _file(run, older).unlink(missing_ok=True)
    return Claim(file, text)


def _file(run: Path, number: int) -> Path:
    return run.with_name(f"{run.name}.claim-{number}")


def _claims(run: Path) -> Iterator[int]:
    """The numbers of a run's claims."""
    for file in run.parent.glob(f"{run.name}.claim-*"):
        with suppress(ValueError):
            yield int(file.name.rpartition("-")[2])


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # of another user
    return True
