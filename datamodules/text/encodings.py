"""Vectors of texts by a frozen encoder: computed once, then mapped from one file by all processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.core.arrays import ArrayWriter, map_array
from datamodules.core.progress import progress_bar
from datamodules.core.ragged import consecutive, offsets_of
from datamodules.core.storage import check_folder

#: Texts, and tokens with their padding, that are encoded together.
_TEXTS_A_BATCH = 256
_TOKENS_A_BATCH = 16_384


@dataclass(frozen=True)
class Encodings:
    """Vectors of n texts by a frozen encoder: one for each text, or one for each of its tokens.

    A datamodule builds them before a training that leaves the encoder as it is; its batches read them.
    """

    #: float32 [all vectors, l]: the vectors of one text after another, not in the order of the texts.
    values: NDArray[np.float32]
    #: int64 [n]: the first vector of each text.
    start: NDArray[np.int64]
    #: int64 [n]: the number of vectors of each text.
    size: NDArray[np.int64]
    #: folder and fingerprint.
    origin: tuple[Path, str]

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> Encodings:
        """Map the files that `write_encodings` wrote; raises an `InputError` if one is missing or damaged."""
        check_folder(folder, fingerprint)
        values = map_array(folder / "values.npy", np.float32, dimensions=2)
        start, size = (map_array(folder / f"{name}.npy", np.int64) for name in ("start", "size"))
        return cls(values, start, size, (folder, fingerprint))

    def of(self, rows: NDArray[np.int64]) -> Tensor:
        """float32 [m, l]: the vectors of m texts with one vector each."""
        return torch.from_numpy(self.values[self.start[rows]])

    def padded(self, rows: NDArray[np.int64], width: int) -> Tensor:
        """float32 [m, width, l]: the token vectors of m texts, 0 behind their ends."""
        padded = np.zeros((len(rows), width, self.values.shape[1]), np.float32)
        vectors = consecutive(self.start[rows], self.size[rows])
        padded[vectors.list_numbers, vectors.positions] = self.values[vectors.values]
        return torch.from_numpy(padded)

    def __reduce__(self) -> tuple[object, ...]:
        # A worker that is spawned (not forked) maps the same files.
        return Encodings.open, self.origin


#: Encodings by one frozen encoder, by the fingerprint of a store of tokens and the number of tokens that are read.
StoredEncodings: TypeAlias = Mapping[tuple[str, int], Encodings]


def write_encodings(
    size: NDArray[np.int64], encode: Callable[[NDArray[np.int64]], Tensor], folder: Path
) -> None:
    """Encode texts with these numbers of tokens [n] into a folder, for `Encodings.open`.

    `encode` returns vectors [m, l] of the m texts with these numbers, or token vectors [m, T, l] where the longest has
    T tokens; vectors behind a text's end are not read.
    """
    # Longest texts first, so that a batch that exceeds the device's memory fails at once.
    order = np.argsort(-size, kind="stable")
    with (
        ArrayWriter(folder / "values.npy", np.float32) as writer,
        progress_bar(total=len(size), desc="encoding") as bar,
    ):
        done, by_token = 0, False
        while done < len(order):
            at_once = min(_TEXTS_A_BATCH, max(1, _TOKENS_A_BATCH // max(int(size[order[done]]), 1)))
            rows = order[done : done + at_once]
            encoded = encode(rows).float().cpu().numpy()
            by_token = encoded.ndim == 3
            if by_token:
                encoded = encoded[np.arange(encoded.shape[1]) < size[rows][:, None]]
            writer.write(encoded)
            done += len(rows)
            bar.update(len(rows))
    numbers = size if by_token else np.ones_like(size)
    start = np.empty(len(size), np.int64)
    start[order] = offsets_of(numbers[order])[:-1]
    np.save(folder / "start.npy", start)
    np.save(folder / "size.npy", numbers)
