"""What a frozen encoder makes of every token of every text: computed once, read from the disk afterwards.

The vectors of a text stand together in one file of half-precision numbers, which all processes map: 2 l bytes a
token (a million tokens of 384 numbers are 0.8 GB on the disk, and in memory only what the system keeps).
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

from datamodules.storage import check_folder, is_whole, lock, new_folder

#: Tokens, padding included, that are encoded together.
_TOKENS_A_BATCH = 8192


@dataclass(frozen=True)
class TokenVectors:
    """Token vectors of n texts.

    Attributes:
        values: float16 [all tokens, l], the texts one after the other, not in their order.
        start: int64 [n], where each text starts.
        size: int64 [n], tokens of each text.
        origin: folder and fingerprint.
    """

    values: NDArray[np.float16]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    origin: tuple[Path, str]

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> TokenVectors:
        """Map what `build` made.

        Raises:
            InputError: it is missing, damaged or another one.
        """
        check_folder(folder, fingerprint)
        values, start, size = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("values", "start", "size")
        )
        return cls(values, start, size, (folder, fingerprint))

    @classmethod
    def build(
        cls,
        size: NDArray[np.int64],
        encode: Callable[[NDArray[np.int64]], Tensor],
        folder: Path,
        fingerprint: str,
    ) -> TokenVectors:
        """Encode texts into a folder and open it; only open it if it is there.

        Args:
            size: [n] tokens of each text.
            encode: vectors [m, T, l] of the texts with these m numbers, T the tokens of the longest; what
                stands behind a text's tokens is not read.
            folder: where the vectors go. Processes that make the same ones wait for the first.
            fingerprint: identifies texts and encoder.
        """
        with lock(folder):
            if not is_whole(folder, fingerprint):
                with new_folder(folder, fingerprint) as partial:
                    _write(size, encode, partial)
        return cls.open(folder, fingerprint)

    def padded(self, rows: NDArray[np.int64], width: int) -> Tensor:
        """float32 [m, width, l]: the vectors of m texts, 0 behind their ends."""
        padded = torch.zeros(len(rows), width, self.values.shape[1])
        for vectors, start, size in zip(
            padded, self.start[rows].tolist(), self.size[rows].tolist(), strict=True
        ):
            vectors[:size] = torch.from_numpy(np.asarray(self.values[start : start + size], np.float32))
        return padded

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that is spawned (not forked) maps the same files.
        return TokenVectors.open, self.origin


def _write(size: NDArray[np.int64], encode: Callable[[NDArray[np.int64]], Tensor], folder: Path) -> None:
    # Texts of like length together, longest first: what does not fit the device's memory is met at once.
    order = np.argsort(-size, kind="stable")
    start = np.empty(len(size), np.int64)
    start[order] = np.concatenate([[0], np.cumsum(size[order])[:-1]])
    np.save(folder / "start.npy", start)
    np.save(folder / "size.npy", size)
    with (
        # A file and no map: on a full disk a write to a map kills the process instead of raising an error.
        (folder / "values.npy").open("wb") as file,
        tqdm(total=len(size), desc="encoding", unit=" texts", delay=2, disable=None) as bar,
    ):
        done, dimension = 0, None
        while done < len(order):
            rows = order[done : done + max(1, _TOKENS_A_BATCH // max(int(size[order[done]]), 1))]
            encoded = encode(rows).to(torch.float16).cpu().numpy()
            if dimension is None:
                dimension = encoded.shape[2]
                shape = (int(size.sum()), dimension)
                header = {"descr": "<f2", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            kept = np.arange(encoded.shape[1]) < size[rows][:, None]
            file.write(encoded[kept].astype("<f2").tobytes())
            done += len(rows)
            bar.update(len(rows))
