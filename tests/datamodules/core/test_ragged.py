from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from datamodules.core.ragged import Ragged, consecutive, offsets_of
from datamodules.core.storage import prepared_folder

LISTS = [[5, 6, 7], [], [8], [9, 10]]


def ragged(lists: list[list[int]]) -> Ragged:
    return Ragged(np.array([*chain.from_iterable(lists)], np.int64), offsets_of([*map(len, lists)]))


def lists_of(values: Ragged) -> list[list[int]]:
    return [values[number].tolist() for number in range(len(values))]


def test_lists_of_different_lengths() -> None:
    values = ragged(LISTS)
    assert len(values) == 4
    assert values.counts.tolist() == [3, 0, 1, 2]
    assert values.list_numbers.tolist() == [0, 0, 0, 2, 3, 3]
    assert values.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert values.padded().tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0], [9, 10, 0]]
    assert ragged([[], []]).padded().tolist() == [[0], [0]]


@pytest.mark.parametrize("rows", [[3, 1, 0, 3], [1], [0, 1, 2, 3]])
def test_lists_are_taken_in_the_order_given(rows: list[int]) -> None:
    assert lists_of(ragged(LISTS).take(np.array(rows))) == [LISTS[row] for row in rows]


def test_no_lists() -> None:
    for nothing in (ragged(LISTS).take(np.zeros(0, np.int64)), ragged([])):
        assert (len(nothing), nothing.values.tolist(), nothing.offsets.tolist()) == (0, [], [0])
        assert nothing.padded().shape == (0, 1)


def test_consecutive_numbers() -> None:
    assert lists_of(consecutive(np.array([7, 0, 3]), np.array([2, 0, 3]))) == [[7, 8], [], [3, 4, 5]]


def test_saved_lists_are_mapped(tmp_path: Path) -> None:
    name, fingerprint = prepared_folder(tmp_path, "saved", "lists", ragged(LISTS).save)
    loaded = Ragged.open(tmp_path / name, fingerprint)
    assert lists_of(loaded) == LISTS
    assert isinstance(loaded.values, np.memmap)
