"""What a frozen encoder makes of texts: computed once, read from the disk afterwards.

An encoder makes one vector of a text, or one of each of its tokens. The vectors of a text stand together in one file of
float32 numbers, which all processes map: 4 l bytes a vector on the disk, and in memory only what the system keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from datamodules.core.arrays import ArrayWriter
from datamodules.core.storage import check_folder, is_whole, lock, new_folder

#: Texts, and tokens with their padding, that are encoded together.
_TEXTS_A_BATCH = 256
_TOKENS_A_BATCH = 16_384


@dataclass(frozen=True)
class Encodings:
    """Vectors of n texts.

    Attributes:
        values: float32 [all vectors, l], text after text, not in their order.
        start: int64 [n], where each text's vectors start.
        size: int64 [n], how many each text has; None = one.
        origin: folder and fingerprint.
    """

    values: NDArray[np.float32]
    start: NDArray[np.int64]
    size: NDArray[np.int64] | None
    origin: tuple[Path, str]

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> Encodings:
        """Map what `build` made.

        Raises:
            InputError: it is missing, damaged or another one.
        """
        check_folder(folder, fingerprint)
        values, start = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("values", "start"))
        sizes = folder / "size.npy"
        return cls(
            values, start, np.load(sizes, mmap_mode="r") if sizes.exists() else None, (folder, fingerprint)
        )

    @classmethod
    def build(
        cls,
        size: NDArray[np.int64],
        encode: Callable[[NDArray[np.int64]], Tensor],
        folder: Path,
        fingerprint: str,
    ) -> Encodings:
        """Encode texts into a folder and open it; only open it if it is there.

        Args:
            size: [n] tokens of each text.
            encode: of the m texts with these numbers, vectors [m, l], or token vectors [m, T, l] where T is the
                longest text's size; what stands behind a text's tokens is not read.
            folder: where the vectors go. Processes that make the same ones wait for the first.
            fingerprint: identifies texts and encoder.
        """
        with lock(folder):
            if not is_whole(folder, fingerprint):
                with new_folder(folder, fingerprint) as partial:
                    _write(size, encode, partial)
        return cls.open(folder, fingerprint)

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """float32 [m, l]: the vectors of m texts that have one each."""
        return torch.from_numpy(self.values[self.start[rows]])

    def padded(self, rows: NDArray[np.int64], width: int) -> Tensor:
        """float32 [m, width, l]: the token vectors of m texts, 0 behind their ends."""
        assert self.size is not None
        padded = np.zeros((len(rows), width, self.values.shape[1]), np.float32)
        places = zip(padded, self.start[rows].tolist(), self.size[rows].tolist(), strict=True)
        for vectors, start, size in places:
            vectors[:size] = self.values[start : start + size]
        return torch.from_numpy(padded)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that is spawned (not forked) maps the same files.
        return Encodings.open, self.origin


def _write(size: NDArray[np.int64], encode: Callable[[NDArray[np.int64]], Tensor], folder: Path) -> None:
    # Texts of like length together, longest first: what does not fit the device's memory is met at once.
    order = np.argsort(-size, kind="stable")
    with (
        ArrayWriter(folder / "values.npy", np.float32) as writer,
        tqdm(total=len(size), desc="encoding", unit=" texts", delay=2, disable=None) as bar,
    ):
        done = 0
        while done < len(order):
            at_once = min(_TEXTS_A_BATCH, max(1, _TOKENS_A_BATCH // max(int(size[order[done]]), 1)))
            rows = order[done : done + at_once]
            encoded = encode(rows).float().cpu().numpy()
            by_token = encoded.ndim == 3
            if done == 0:
                _write_places(size, order, by_token, folder)
            if by_token:
                encoded = encoded[np.arange(encoded.shape[1]) < size[rows][:, None]]
            writer.write(encoded)
            done += len(rows)
            bar.update(len(rows))


def _write_places(size: NDArray[np.int64], order: NDArray[np.int64], by_token: bool, folder: Path) -> None:
    """Write where each text's vectors stand, the texts being written in this order."""
    vectors = size[order] if by_token else np.ones_like(size)
    start = np.empty(len(size), np.int64)
    start[order] = np.cumsum(vectors) - vectors
    np.save(folder / "start.npy", start)
    if by_token:
        np.save(folder / "size.npy", size)
