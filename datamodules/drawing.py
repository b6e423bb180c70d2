"""Random choices that differ in every epoch.

A choice is a hash (S. Vigna's SplitMix64) of the run's seed, the epoch and the number of the list, so any number of
workers, and a resumed run, draw the same.
"""

from __future__ import annotations

import numpy as np

from datamodules.core.compiled import njit

#: Draws for a position before it stays empty, for lists that own nearly all texts.
_TRIES = 64


def key_of(seed: int, *purpose: int) -> np.uint64:
    """The common key of all draws of an epoch, or of an epoch and a purpose."""
    key: np.uint64 = np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0]
    return key


@njit()
def _random(key, number, draw):  # type: ignore[no-untyped-def]
    """A 63-bit number for a draw of a list."""
    x = (
        key
        + np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(draw) * np.uint64(0xD1342543DE82EF95)
    )
    for _ in range(2):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return np.int64(x >> np.uint64(1))


@njit()
def choose(key, lists, size, count):  # type: ignore[no-untyped-def]
    """Draw `count` distinct numbers below `size` for each list [n, count], -1 where there are fewer."""
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
    return chosen


@njit()
def choose_foreign(key, lists, question, codes, own, offsets, count):  # type: ignore[no-untyped-def]
    """Draw rows of second texts [n, count] that are no duplicates of a list's own texts nor of each other."""
    chosen = np.full((len(lists), count), -1, np.int64)
    for i in range(len(lists)):
        excluded = own[offsets[question[i]] : offsets[question[i] + 1]]
        taken = draws = 0
        while taken < count and draws < count * _TRIES:
            row = _random(key, lists[i], draws) % len(codes)
            draws += 1
            code = codes[row]
            position = np.searchsorted(excluded, code)
            is_new = position == len(excluded) or excluded[position] != code
            for j in range(taken):
                is_new = is_new and codes[chosen[i, j]] != code
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
