"""Arrays written block by block are those that numpy saves, and look-ups agree with a plain search."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from datamodules.core.arrays import ArrayWriter, RowLookup, find_sorted, map_array


@pytest.mark.parametrize("shape", [(0,), (7,), (0, 3), (7, 3)])
@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint8])
@pytest.mark.parametrize("block", [2, 100])
def test_blocks_make_the_whole_file(tmp_path: Path, shape: tuple[int, ...], dtype: type, block: int) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.save(tmp_path / "whole.npy", array)
    with ArrayWriter(tmp_path / "blocks.npy", dtype, shape[1:]) as writer:
        for first in range(0, len(array), block):
            writer.write(array[first : first + block].astype(np.float64))
        assert writer.length == len(array)
    assert (tmp_path / "blocks.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    mapped = map_array(tmp_path / "blocks.npy", dtype, array.ndim)
    assert type(mapped) is np.ndarray
    np.testing.assert_array_equal(mapped, array)


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "a.npy", np.float32) as writer:
        writer.write(np.zeros((2, 3)))
        with pytest.raises(ValueError, match="shape"):
            writer.write(np.zeros((2, 4)))
    assert map_array(tmp_path / "a.npy", np.float32, 2).shape == (2, 3)


def test_sorted_values_are_found() -> None:
    ascending = np.array([1, 4, 4, 9])
    assert find_sorted(ascending, np.array([[4, 0], [9, 10]])).tolist() == [[1, -1], [3, -1]]
    assert find_sorted(ascending[:0], np.array([4, 0])).tolist() == [-1, -1]


def test_rows_are_looked_up_by_their_keys(tmp_path: Path) -> None:
    keys = np.array([7, 3, 2**64 - 1, 3, 0, 3], np.uint64)
    RowLookup.of(keys).save(tmp_path)
    nearly = (RowLookup.of(keys, np.array(order)) for order in permutations(range(6)))
    for lookup in (RowLookup.of(keys), RowLookup.open(tmp_path), *nearly):
        wanted = np.array([3, 5, 2**64 - 1, 0], np.uint64)
        assert lookup.first_rows(wanted).tolist() == [1, -1, 2, 4]
        assert [rows.tolist() for rows in lookup.all_rows(wanted)] == [[1, 3, 5], [], [2], [4]]
        np.testing.assert_array_equal(lookup.keys_by_row(), keys)
    empty = RowLookup.of(keys[:0])
    assert empty.first_rows(keys[:2]).tolist() == [-1, -1]
    assert [rows.tolist() for rows in empty.all_rows(keys[:2])] == [[], []]
