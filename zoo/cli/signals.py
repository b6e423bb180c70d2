"""Ends of a command by a signal, with the exit code that shells expect."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(SystemExit):
    """End by SIGTERM, for which Lightning itself would exit with code 0."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


@contextmanager
def raising_sigterm() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, so that half-written files are deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_children() -> None:
    """Kill the processes that were forked for devices or batches, for which Python would wait, perhaps for hours."""
    for child in multiprocessing.active_children():
        child.kill()


def ending_signal(end: BaseException) -> signal.Signals | None:
    """Return the signal that ended a command, if any; Lightning turns a KeyboardInterrupt into a SystemExit."""
    cause: BaseException | None = end
    while cause is not None:
        if isinstance(cause, Terminated):
            return signal.SIGTERM
        if isinstance(cause, KeyboardInterrupt):
            return signal.SIGINT
        cause = cause.__context__
    return None
