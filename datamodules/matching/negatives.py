"""Texts that do not match, drawn again in every epoch; see `datamodules.drawing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.pairs import Pairs
from datamodules.drawing import Matches, choose, key_of

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
    """Draw from the pool's range of each list, see `Draw`."""
    drawn: NDArray[np.int64] = choose(key_of(seed, epoch), lists, pool, start[lists], size[lists], count)
    return drawn


def _draw_foreign(
    own: Matches, question: NDArray[np.int64], count: int, seed: int, epoch: int, lists: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw second texts that are none of the `own` ones of each list's question, see `Draw`."""
    return own.draw(key_of(seed, epoch), lists, question[lists], count)


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
    return positives[kept], partial(_draw_from_ranges, order, start[kept], size[kept], count, seed)


def foreign_negatives(
    pairs: Pairs, pool: Ragged | None, question: NDArray[np.int64], count: int, seed: int
) -> Draw:
    """Second texts from `pool` (those of each question), or all foreign texts, for the questions of lists [lists]."""
    if pool is None:
        own = Matches.of(pairs.second.texts, pairs.num_questions, pairs.question, pairs.second_row)
        return partial(_draw_foreign, own, question, count, seed)
    start, size = pool.offsets[question], pool.counts[question]
    return partial(_draw_from_ranges, np.asarray(pool.values), start, size, count, seed)


def foreign_texts(pairs: Pairs, hits: NDArray[np.int64], excluded: NDArray[np.bool_]) -> Ragged:
    """The distinct hits [questions, k] (-1 = none) that duplicate no text of the question's `excluded` pairs [P]."""
    question, row = pairs.question[excluded], pairs.second_row[excluded]
    own = Matches.of(pairs.second.texts, len(hits), question, row)
    # One number for a question and a text.
    keys = np.where(hits >= 0, np.arange(len(hits))[:, None] * len(own.codes) + own.codes[hits], -1)
    kept = np.zeros(hits.size, bool)
    kept[np.unique(keys, return_index=True)[1]] = True
    kept = kept.reshape(hits.shape) & own.are_foreign(hits)
    return Ragged(hits[kept], offsets_of(kept.sum(axis=1)))
