"""Objects that the threads of a process share, and processes that were forked."""

from __future__ import annotations

import os
import sys
import threading

# The process that imported this module; a forked one has another number.
_STARTED_AS = os.getpid()


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


def network_threads(wanted: int) -> int:
    """Return the number of threads in which networks may compute: 1 in a forked process."""
    return wanted if os.getpid() == _STARTED_AS else 1


def _use_one_thread() -> None:
    # The threads of OpenMP and of the tokenizers are gone, and both libraries would wait for them for ever.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_use_one_thread)
