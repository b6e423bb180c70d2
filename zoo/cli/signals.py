"""How a command ends that is stopped from outside: with the exit code that shells expect of a signal."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(SystemExit):
    """SIGTERM came. Lightning's own answer to it is an end with exit code 0."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


@contextmanager
def raising_sigterm() -> Iterator[None]:
    """SIGTERM raises `Terminated` wherever the command is, so that what is half written is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_children() -> None:
    """End the processes that were forked for devices or batches; Python would wait for them, perhaps for hours.

    What they have written is whole, so that they need not be asked.
    """
    for child in multiprocessing.active_children():
        child.kill()


def ending_signal(end: BaseException) -> signal.Signals | None:
    """The signal that ended a command, if one did.

    Args:
        end: what ended it. Lightning turns a KeyboardInterrupt into a SystemExit with code 1.
    """
    cause: BaseException | None = end
    while cause is not None:
        if isinstance(cause, Terminated):
            return signal.SIGTERM
        if isinstance(cause, KeyboardInterrupt):
            return signal.SIGINT
        cause = cause.__context__
    return None
