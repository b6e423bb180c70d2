"""Random choices that differ in every epoch, and the texts that negatives are drawn from.

A choice is a hash (S. Vigna's SplitMix64) of the run's seed, the epoch and the number of the list, so any number of
workers, and a resumed run, draw the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import Longs, find_sorted
from datamodules.core.ragged import Ragged
from datamodules.duplicates import duplicate_codes

#: Draws for a position before it stays empty, for lists that own nearly all texts.
_TRIES = 64


class Matches(NamedTuple):
    """The texts that match each of Q questions, with their duplicates: none of its negatives is among them."""

    #: int64 [texts]: equal for duplicates.
    codes: NDArray[np.int64]
    #: question * texts + code of each question's matches, ascending.
    own: Ragged

    @classmethod
    def of(
        cls, texts: Iterable[str], num_questions: int, question: NDArray[np.int32], row: NDArray[np.int32]
    ) -> Matches:
        """Collect the matches of the questions: n pairs of a question [n] and a row of the texts [n]."""
        codes = duplicate_codes(texts)
        keys = np.unique(question.astype(np.int64) * len(codes) + codes[row])
        ends = np.arange(num_questions + 1) * len(codes)
        return cls(codes, Ragged(keys, np.searchsorted(keys, ends)))

    def holds(self, question: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True where texts match questions; arrays of numbers that broadcast."""
        return find_sorted(self.own.values, question * len(self.codes) + self.codes[row]) >= 0

    def are_foreign(self, hits: NDArray[np.integer]) -> NDArray[np.bool_]:
        """bool [Q, k]: the hits, rows of the texts (-1 = none), that do not match their question."""
        return (hits >= 0) & ~self.holds(np.arange(len(hits))[:, None], hits.clip(min=0).astype(np.int64))

    def draw(self, key: np.uint64, lists: Longs, question: Longs, count: int) -> Longs:
        """Draw rows of texts [n, count] that do not match the question of a list [n], no two of them duplicates."""
        chosen, taken = np.full((len(lists), count), -1), np.zeros(len(lists), np.int64)
        for draw in range(count * _TRIES):
            if len(waiting := np.flatnonzero(taken < count)) == 0:
                break
            row, own = _random(key, lists[waiting], draw) % len(self.codes), chosen[waiting]
            is_repeated = (own >= 0) & (self.codes[own] == self.codes[row][:, None])
            is_new = ~is_repeated.any(axis=1) & ~self.holds(question[waiting], row)
            chosen[waiting[is_new], taken[waiting[is_new]]] = row[is_new]
            taken[waiting[is_new]] += 1
        return chosen


def key_of(seed: int, *purpose: int) -> np.uint64:
    """The common key of all draws of an epoch, or of an epoch and a purpose."""
    return np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0]


def _random(key: np.uint64, numbers: Longs, draw: Longs | int) -> Longs:
    """A 63-bit number for a draw of each list [n]."""
    x = key + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += np.full(len(x), draw).astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    for _ in range(2):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(1)).astype(np.int64)


def choose(key: np.uint64, lists: Longs, values: Longs, start: Longs, size: Longs, count: int) -> Longs:
    """Draw `count` of the `size` values from `start` on for each list [n, count], -1 where there are fewer."""
    chosen = np.full((len(lists), count), -1)
    for taken in range(count):
        # R. Floyd's algorithm draws without replacement: one random number a draw, no table of the size.
        last = np.maximum(size - count, 0) + taken
        number = _random(key, lists, last) % (last + 1)
        number = np.where((chosen == number[:, None]).any(axis=1), last, number)
        chosen[:, taken] = np.where(taken < size, number, -1)
    is_drawn = chosen >= 0
    chosen[is_drawn] = values[(start[:, None] + chosen)[is_drawn]]
    return chosen


def uniform(key: np.uint64, numbers: Longs) -> NDArray[np.float64]:
    """Draw a number above 0 and at most 1 for each of `numbers` [n]: float64 [n]."""
    return np.asarray((_random(key, numbers, 0) + 1.0) / 2.0**63, np.float64)
