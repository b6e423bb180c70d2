"""Lists of different lengths in one array."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datamodules.core.sharing import cached_property
from datamodules.core.storage import check_folder


@dataclass(frozen=True, eq=False)
class Ragged:
    """n lists of whole numbers, of different lengths, in one array."""

    #: [all values], list after list.
    values: NDArray[np.int64]
    #: [n + 1]; list i is `values[offsets[i]:offsets[i + 1]]`.
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        return self.values[self.offsets[number] : self.offsets[number + 1]]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """int64 [n]: the length of each list."""
        return np.diff(self.offsets)

    @property
    def list_numbers(self) -> NDArray[np.int64]:
        """int64 [all values]: the number of each value's list."""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64 [all values]: the position of each value in its list."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.counts)

    def take(self, rows: NDArray[np.integer]) -> Ragged:
        """Return some of the lists, in the order given."""
        chosen = consecutive(self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows])
        return Ragged(self.values[chosen.values], chosen.offsets)

    def padded(self) -> NDArray[np.int64]:
        """int64 [n, length of the longest list, at least 1]: the lists as rows, filled up with 0."""
        rows = np.zeros((len(self), max(1, int(self.counts.max(initial=0)))), np.int64)
        rows[self.list_numbers, self.positions] = self.values
        return rows

    def save(self, folder: Path) -> None:
        """Write the files that `open` maps."""
        np.save(folder / "values.npy", self.values)
        np.save(folder / "offsets.npy", self.offsets)

    @staticmethod
    def open(folder: Path, fingerprint: str) -> Ragged:
        """Map the files that `save` wrote; raises an `InputError` if one is missing or damaged."""
        check_folder(folder, fingerprint)
        return Ragged(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("values", "offsets")))


def consecutive(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Ragged:
    """Return n lists: list i is `starts[i], starts[i] + 1, ...`, with `counts[i]` values."""
    offsets = offsets_of(counts)
    return Ragged(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts), offsets)


def offsets_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return the start of each of n consecutive pieces, and the end of the last one, int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])
