"""Files, kills and checks of messages that several tests share."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.retrieval import FolderMemory


def sizes(memory: FolderMemory) -> list[tuple[int, int]]:
    return [(entry["version"], entry["rows"]) for entry in memory.history()]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def refused(*parts: object, match: str | None = None) -> Iterator[None]:
    """Expect an `InputError` whose message is one line with these parts, and matches a regular expression."""
    with pytest.raises(InputError, match=match) as error:
        yield
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


def kill(*_: object, **__: object) -> None:
    """Kill this process, in place of any function."""
    os.kill(os.getpid(), signal.SIGKILL)


def grown_from(old: int, new: int) -> NDArray[np.int64]:
    """Rows of a collection of `new` texts in an index of its first `old` ones, see `Retriever.update`."""
    return np.where(np.arange(new) < old, np.arange(new), -1)
