"""The interface of encoders, which turn texts into vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

#: A bar that is updated by hand.
ProgressBar: TypeAlias = "tqdm[NoReturn]"


class TextEncoder(Protocol):
    """Encodes texts as vectors."""

    #: length of a vector.
    size: int

    @property
    def query_encoder(self) -> Callable[[list[str], int, ProgressBar], NDArray[np.float32]] | None:
        """An encoder of queries, with the arguments of `__call__`; None if queries are encoded like all texts."""

    def __call__(self, texts: list[str], batch_size: int, bar: ProgressBar) -> NDArray[np.float32]:
        """Return the vectors of n texts [n, size], of length 1, 0 for a text without tokens; update the bar."""


@contextmanager
def inference(threads: int | None) -> Iterator[None]:
    """Run networks without gradients, with this number of CPU threads; None keeps the setting."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)
