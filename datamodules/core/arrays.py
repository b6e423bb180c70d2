"""Arrays on the disk: files written block by block, files mapped and checked, and rows looked up by their keys.

Checksums show accidents, and not numbers that somebody chose: compiled code would read and write outside of its arrays.
So every array that compiled code reads is checked when it is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from datamodules.core.errors import DamagedError, reason
from datamodules.core.storage import REBUILD

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
ULongs: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]


class ArrayWriter:
    """Writes an .npy file block by block; `row_shape` is only used if there is no block."""

    def __init__(self, path: Path, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._row_shape = row_shape
        # Not memory-mapped: on a full disk a write to a map kills the process instead of raising an error.
        self._file = path.open("wb")
        self.length = 0

    def write(self, block: NDArray[np.generic]) -> None:
        """Append rows [n, ...]."""
        if self.length == 0:
            self._row_shape = block.shape[1:]
            self._write_header()
        elif block.shape[1:] != self._row_shape:
            raise ValueError(f"rows of shape {block.shape[1:]} after rows of shape {self._row_shape}")
        self._file.write(np.ascontiguousarray(block, self._dtype).data)
        self.length += len(block)

    def _write_header(self) -> None:
        self._file.seek(0)
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.length, *self._row_shape)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._file:
            if error is None:
                self._write_header()


def map_array(path: Path, dtype: DTypeLike, dimensions: int = 1, length: int | None = None) -> NDArray[Any]:
    """Map an .npy file as a plain array, whose slices and calls are faster than those of `numpy.memmap`.

    Raises a `DamagedError` if it has another type, number of dimensions or length, or less data than its header
    announces.
    """
    try:
        array = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, OverflowError, EOFError) as error:
        raise damaged(path, reason(error)) from error
    if array.dtype != dtype or array.ndim != dimensions or not array.flags.c_contiguous:
        raise damaged(path, f"an array {array.dtype} of {array.ndim} dimensions")
    if length not in (None, len(array)):
        raise damaged(path, f"has {len(array)} rows instead of {length}")
    return array


def damaged(path: Path, problem: str) -> DamagedError:
    """Return the error for a file with wrong contents."""
    return DamagedError(f"{path}: damaged ({problem}); {REBUILD}")


def check_numbers(path: Path, numbers: NDArray[np.integer], limit: int, least: int = 0) -> None:
    """Raise a `DamagedError` unless all numbers are in least..limit - 1."""
    if len(numbers) and (numbers.min() < least or numbers.max() >= limit):
        raise damaged(path, f"has numbers outside of {least}..{limit - 1}")


def check_starts(path: Path, starts: NDArray[np.int64], length: int) -> None:
    """Raise a `DamagedError` unless starts [n + 1] divide an array of this length into n consecutive parts."""
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != length or (starts[1:] < starts[:-1]).any():
        raise damaged(path, f"does not divide {length} numbers into parts")


def find_sorted(ascending: NDArray[np.integer], wanted: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the first position of each wanted value in an ascending array, -1 where it is missing."""
    if len(ascending) == 0:
        return np.full(wanted.shape, -1)
    positions = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[positions] == wanted, positions, -1)


class RowLookup(NamedTuple):
    """The rows of n keys, such as the hashes of a table's texts."""

    #: uint64 [n]: the keys, ascending.
    keys: NDArray[np.uint64]
    #: int32 [n]: the row of each; rows of equal keys are ascending.
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, keys: NDArray[np.uint64], rows: NDArray[np.integer] | None = None) -> RowLookup:
        """Sort the keys of rows 0, 1, ...; `rows` [n] in an order that is almost sorted save time."""
        if rows is None:
            order = np.argsort(keys, kind="stable").astype(np.int32)
            return cls(keys[order], order)
        order = rows[np.argsort(keys[rows], kind="stable")].astype(np.int32)
        lookup = cls(keys[order], order)
        is_equal = lookup.keys[1:] == lookup.keys[:-1]
        return lookup if (np.diff(order)[is_equal] > 0).all() else cls.of(keys)

    def save(self, folder: Path) -> None:
        """Write the files that `open` maps."""
        np.save(folder / "hashes.npy", self.keys)
        np.save(folder / "hash_rows.npy", self.rows)

    @classmethod
    def open(cls, folder: Path, length: int | None = None) -> RowLookup:
        """Map the files that `save` wrote, for this number of rows if one is given."""
        keys = map_array(folder / "hashes.npy", np.uint64, length=length)
        rows = map_array(folder / "hash_rows.npy", np.int32, length=len(keys))
        check_numbers(folder / "hash_rows.npy", rows, len(keys))
        return cls(keys, rows)

    def first_rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the first row with each key, int32 [m], -1 where there is none."""
        positions = find_sorted(self.keys, keys)
        rows = np.full(len(keys), -1, np.int32)
        rows[positions >= 0] = self.rows[positions[positions >= 0]]
        return rows

    def all_rows(self, keys: NDArray[np.uint64]) -> list[NDArray[np.int32]]:
        """Return all rows with each key."""
        first = np.searchsorted(self.keys, keys, side="left")
        last = np.searchsorted(self.keys, keys, side="right")
        return [self.rows[start:end] for start, end in zip(first, last, strict=True)]

    def keys_by_row(self) -> NDArray[np.uint64]:
        """Return the keys in the order of their rows, uint64 [n]."""
        keys = np.empty_like(self.keys)
        keys[self.rows] = self.keys
        return keys
