"""Texts that do not match, drawn again in every epoch; see `datamodules.drawing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.pairs import Pairs
from datamodules.drawing import choose, choose_foreign, key_of
from datamodules.duplicates import duplicate_codes


class Drawn(NamedTuple):
    """Negatives of n lists; all arrays are [n, k]."""

    #: int64: rows of the second texts, -1 where there is none.
    second: NDArray[np.int64]
    #: float32: their grades.
    target: NDArray[np.float32]
    #: int64: their rows in the table of pairs, -1 where the pair is in no table.
    row: NDArray[np.int64]


class Negatives(Protocol):
    """Draws negatives for lists."""

    def draw(self, epoch: int, lists: NDArray[np.int64]) -> Drawn:
        """At most k distinct negatives for each of the lists with these numbers, int64 [n]."""


@dataclass(frozen=True)
class PoolNegatives:
    """Negatives from a pool, of which each list has a range."""

    #: the pool's texts as in `Drawn`.
    second: NDArray[np.int64]
    target: NDArray[np.float32]
    row: NDArray[np.int64]
    #: int64 [lists]: start and length of each list's range.
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    #: k, maximum number of negatives of a list.
    count: int
    seed: int

    def draw(self, epoch: int, lists: NDArray[np.int64]) -> Drawn:
        """See `Negatives.draw`."""
        positions = choose(key_of(self.seed, epoch), lists, self.size[lists], self.count)
        missing = positions < 0
        chosen = np.where(missing, 0, positions + self.start[lists][:, None])
        second, row = (np.where(missing, -1, values[chosen]) for values in (self.second, self.row))
        return Drawn(second, self.target[chosen], row)


@dataclass(frozen=True)
class RandomNegatives:
    """Random second texts that are not the question's own."""

    #: int64 [second texts]: equal for duplicates.
    codes: NDArray[np.int64]
    #: the codes of each question's own texts, ascending.
    own: Ragged
    #: int64 [lists]: the question of each list.
    question: NDArray[np.int64]
    #: k, maximum number of negatives of a list.
    count: int
    seed: int

    def draw(self, epoch: int, lists: NDArray[np.int64]) -> Drawn:
        """See `Negatives.draw`."""
        key, own = key_of(self.seed, epoch), self.own
        second = choose_foreign(
            key, lists, self.question[lists], self.codes, own.values, own.offsets, self.count
        )
        return Drawn(second, np.zeros(second.shape, np.float32), np.full(second.shape, -1))


def own_negatives(
    pairs: Pairs, positives: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.int64], PoolNegatives]:
    """The positives (row numbers) whose question has candidates of a lower grade, and these candidates."""
    # In a question's candidates by rising grade, those below a grade are the first ones.
    order = np.lexsort((pairs.target, pairs.question))
    question, target = pairs.question[order], pairs.target[order]
    is_new_grade = np.ones(len(order), dtype=bool)
    is_new_grade[1:] = (question[1:] != question[:-1]) | (target[1:] != target[:-1])
    first_of_grade = np.maximum.accumulate(np.where(is_new_grade, np.arange(len(order)), 0))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    start = pairs.lists.offsets[pairs.question[positives]]
    size = first_of_grade[position[positives]] - start
    kept = size > 0
    negatives = PoolNegatives(
        pairs.second_row[order].astype(np.int64), target, order, start[kept], size[kept], count, seed
    )
    return positives[kept], negatives


def foreign_negatives(
    pairs: Pairs, pool: Ragged | None, question: NDArray[np.int64], count: int, seed: int
) -> Negatives:
    """Negatives from `pool` (rows of second texts of each question), or all foreign texts, for questions [lists]."""
    if pool is None:
        codes = duplicate_codes(pairs.second.texts)
        own = codes[pairs.second_row]
        order = np.lexsort((own, pairs.question))
        return RandomNegatives(codes, Ragged(own[order], pairs.lists.offsets), question, count, seed)
    no_grade, no_row = np.zeros(len(pool.values), np.float32), np.full(len(pool.values), -1)
    start, size = pool.offsets[question], pool.counts[question]
    return PoolNegatives(pool.values, no_grade, no_row, start, size, count, seed)


def foreign_texts(pairs: Pairs, hits: NDArray[np.int64], excluded: NDArray[np.bool_]) -> Ragged:
    """The distinct hits [questions, k] (-1 = none) that duplicate no text of the question's `excluded` pairs [P]."""
    codes = duplicate_codes(pairs.second.texts)
    question = np.repeat(np.arange(len(hits)), hits.shape[1])
    rows = hits.reshape(-1)
    # One number for a question and a text.
    keys = np.where(rows >= 0, question * len(codes) + codes[rows], -1)
    own = pairs.question[excluded].astype(np.int64) * len(codes) + codes[pairs.second_row[excluded]]
    is_first = np.zeros(len(keys), dtype=bool)
    is_first[np.unique(keys, return_index=True)[1]] = True
    kept = (rows >= 0) & is_first & ~np.isin(keys, own)
    return Ragged(rows[kept], offsets_of(np.bincount(question[kept], minlength=len(hits))))
