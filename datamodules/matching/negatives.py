"""Texts that do not match, drawn again in every epoch; see `datamodules.drawing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.pairs import Pairs
from datamodules.drawing import choose, choose_foreign, key_of
from datamodules.duplicates import duplicate_codes

#: Draws distinct negatives [n, k] for an epoch and the numbers of lists [n]; -1 = there are no more.
Draw: TypeAlias = Callable[[int, NDArray[np.int64]], NDArray[np.int64]]


def _draw_from_ranges(
    pool: NDArray[np.int64],
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    count: int,
    seed: int,
    epoch: int,
    lists: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw from the pool's range of each list, see `Draw`; the pool ends with -1."""
    positions = choose(key_of(seed, epoch), lists, size[lists], count)
    return pool[np.where(positions < 0, -1, positions + start[lists][:, None])]


def _draw_foreign(
    codes: NDArray[np.int64],
    own: Ragged,
    question: NDArray[np.int64],
    count: int,
    seed: int,
    epoch: int,
    lists: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw rows of second texts whose codes are none of the `own` ones of each list's question, see `Draw`."""
    drawn: NDArray[np.int64] = choose_foreign(
        key_of(seed, epoch), lists, question[lists], codes, own.values, own.offsets, count
    )
    return drawn


def own_negatives(
    pairs: Pairs, positives: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.int64], Draw]:
    """The positives (row numbers) whose question has candidates of a lower grade, and these pairs."""
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
    pool = np.append(order, -1)
    return positives[kept], partial(_draw_from_ranges, pool, start[kept], size[kept], count, seed)


def foreign_negatives(
    pairs: Pairs, pool: Ragged | None, question: NDArray[np.int64], count: int, seed: int
) -> Draw:
    """Second texts from `pool` (those of each question), or all foreign texts, for the questions of lists [lists]."""
    if pool is None:
        codes = duplicate_codes(pairs.second.texts)
        own = codes[pairs.second_row]
        order = np.lexsort((own, pairs.question))
        return partial(_draw_foreign, codes, Ragged(own[order], pairs.lists.offsets), question, count, seed)
    values, start, size = np.append(pool.values, -1), pool.offsets[question], pool.counts[question]
    return partial(_draw_from_ranges, values, start, size, count, seed)


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
