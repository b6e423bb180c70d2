"""Random choices that differ in every epoch, and the texts that negatives are drawn from.

A choice is a hash (S. Vigna's SplitMix64) of the run's seed, the epoch and the number of the list, so any number of
workers, and a resumed run, draw the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import find_sorted
from datamodules.core.compiled import njit
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

    def draw(
        self, key: np.uint64, lists: NDArray[np.int64], question: NDArray[np.int64], count: int
    ) -> NDArray[np.int64]:
        """Draw rows of texts [n, count] that do not match the question of a list [n], no two of them duplicates."""
        own = self.own
        return _foreign(key, lists, question, self.codes, own.values, own.offsets, count)


def key_of(seed: int, *purpose: int) -> np.uint64:
    """The common key of all draws of an epoch, or of an epoch and a purpose."""
    return np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0]


@njit()
def _random(key, number, draw):  # type: ignore[no-untyped-def]
    """A 63-bit number for a draw of a list."""
    x = key + np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64(draw) * np.uint64(0xD1342543DE82EF95)
    for _ in range(2):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return np.int64(x >> np.uint64(1))


@njit()
def choose(key, lists, values, start, size, count):  # type: ignore[no-untyped-def]
    """Draw `count` of the `size` values from `start` on for each list [n, count], -1 where there are fewer."""
    chosen = np.full((len(lists), count), -1, np.int64)
    for i in range(len(lists)):
        # R. Floyd's algorithm draws without replacement: one random number a draw, no table of the size.
        for taken, last in enumerate(range(max(0, size[i] - count), size[i])):
            number = _random(key, lists[i], last) % (last + 1)
            for j in range(taken):
                if chosen[i, j] == number:
                    number = last
                    break
            chosen[i, taken] = number
        for taken in range(min(count, size[i])):
            chosen[i, taken] = values[start[i] + chosen[i, taken]]
    return chosen


@njit()
def _foreign(key, lists, question, codes, own, offsets, count):  # type: ignore[no-untyped-def]
    """Draw as `Matches.draw` describes."""
    chosen = np.full((len(lists), count), -1, np.int64)
    for i in range(len(lists)):
        excluded = own[offsets[question[i]] : offsets[question[i] + 1]]
        taken = draws = 0
        while taken < count and draws < count * _TRIES:
            row = _random(key, lists[i], draws) % len(codes)
            draws += 1
            match = question[i] * len(codes) + codes[row]
            position = np.searchsorted(excluded, match)
            is_new = position == len(excluded) or excluded[position] != match
            for j in range(taken):
                is_new = is_new and codes[chosen[i, j]] != codes[row]
            if is_new:
                chosen[i, taken] = row
                taken += 1
    return chosen


@njit()
def uniform(key, numbers):  # type: ignore[no-untyped-def]
    """Draw a number above 0 and at most 1 for each of `numbers` [n]: float64 [n]."""
    drawn = np.empty(len(numbers), np.float64)
    for i in range(len(numbers)):
        drawn[i] = (np.float64(_random(key, numbers[i], 0)) + 1.0) / 9.223372036854775808e18
    return drawn
