"""Objects that the threads of a process share, and processes that were forked."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property as locked_property
from typing import Any, TypeVar

ValueT = TypeVar("ValueT")


class SharedLock:
    """A lock that its thread may take again. A forked process finds it free, and so does one that unpickles it."""

    def __init__(self) -> None:
        # At a fork, a thread that exists only in the parent may hold the lock.
        self._of_process: dict[int, threading.RLock] = {}

    def __enter__(self) -> None:
        self._here().acquire()

    def __exit__(self, *error: object) -> None:
        self._here().release()

    def _here(self) -> threading.RLock:
        return self._of_process.setdefault(os.getpid(), threading.RLock())

    def __reduce__(self) -> tuple[type[SharedLock], tuple[()]]:
        return SharedLock, ()


class cached_property(locked_property[ValueT]):
    """`functools.cached_property` without the lock that it has until Python 3.11, one for all objects of a class.

    At a fork, a thread that exists only in the parent may hold that lock, too.
    """

    def __init__(self, func: Callable[[Any], ValueT]) -> None:
        super().__init__(func)
        self.lock = nullcontext()


def _use_one_thread() -> None:
    # The threads of OpenMP and of the tokenizers are gone, and both libraries would wait for them for ever.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_use_one_thread)
