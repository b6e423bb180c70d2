"""Files, kills and checks of messages that several tests share."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.base import Hits


def sizes(memory: FolderMemory) -> list[tuple[int, int]]:
    return [(entry["version"], entry["rows"]) for entry in memory.history()]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def files_of(folder: Path) -> dict[Path, bytes]:
    """The files below a folder with their contents."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def refused(*parts: object, match: str | None = None) -> Iterator[None]:
    """Expect an `InputError` whose message is one line with these parts, and matches a regular expression."""
    with pytest.raises(InputError, match=match) as error:
        yield
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


def check_near(hits: Hits, expected: Hits) -> None:
    """Check that hits are equal up to rounding, which may change the order of near scores."""
    near = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(hits.scores, expected.scores, **near)
    np.testing.assert_array_equal(hits.rows == -1, expected.rows == -1)
    for rows, scores, own_rows, own_scores in zip(*hits, *expected, strict=True):
        score_of = dict(zip(own_rows.tolist(), own_scores.tolist(), strict=True))
        worst = float(own_scores.min())
        np.testing.assert_allclose(scores, [score_of.get(row, worst) for row in rows.tolist()], **near)


def kill(*_: object, **__: object) -> None:
    """Kill this process, in place of any function."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which then kills its process."""

    def call(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        kill()

    return call


def grown_from(old: int, new: int) -> NDArray[np.int64]:
    """Rows of a collection of `new` texts in an index of its first `old` ones, see `Retriever.update`."""
    return np.where(np.arange(new) < old, np.arange(new), -1)
