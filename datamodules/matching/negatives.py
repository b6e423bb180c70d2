"""Texts that do not match, drawn anew in every epoch.

How numbers are drawn: see `datamodules.drawing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.pairs import Pairs
from datamodules.drawing import choose, choose_foreign, key_of
from datamodules.retrieval.folding import fold_hashes


class Drawn(NamedTuple):
    """Negatives of n lists; all arrays are [n, k]."""

    #: int64: rows of the second texts, -1 where there is none.
    second: NDArray[np.int64]
    #: float32: their grades.
    target: NDArray[np.float32]
    #: int64: their row in the table of pairs, -1 where the pair is in no table.
    row: NDArray[np.int64]


class Negatives(Protocol):
    """Draws negatives for lists."""

    def draw(self, epoch: int, lists: NDArray[np.int64]) -> Drawn:
        """At most k distinct negatives for each list.

        Args:
            epoch: another epoch draws anew.
            lists: int64 [n], numbers of lists.
        """


@dataclass(frozen=True)
class PoolNegatives:
    """Negatives that stand in a pool, a stretch of it for each list.

    Attributes:
        second: rows of the pool's second texts.
        target: their grades.
        row: their rows in the table of pairs, or -1.
        start: int64 [lists], where a list's stretch starts.
        size: int64 [lists], how long it is.
        count: k, negatives of a list; a shorter stretch is taken whole.
        seed: of the run.
    """

    second: NDArray[np.int64]
    target: NDArray[np.float32]
    row: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    count: int
    seed: int

    def draw(self, epoch: int, lists: NDArray[np.int64]) -> Drawn:
        """See `Negatives.draw`."""
        places = choose(key_of(self.seed, epoch), lists, self.size[lists], self.count)
        missing = places < 0
        at = np.where(missing, 0, places + self.start[lists][:, None])
        return Drawn(
            np.where(missing, -1, self.second[at]), self.target[at], np.where(missing, -1, self.row[at])
        )


@dataclass(frozen=True)
class RandomNegatives:
    """Any second text that is not one of the question's own.

    Attributes:
        codes: int64 [second texts], equal where texts are copies of each other.
        own: int64, the codes of each question's own texts, sorted within a question.
        offsets: int64 [questions + 1], question q owns `own[offsets[q]:offsets[q + 1]]`.
        question: int64 [lists], the question of each list.
        count: k, negatives of a list.
        seed: of the run.
    """

    codes: NDArray[np.int64]
    own: NDArray[np.int64]
    offsets: NDArray[np.int64]
    question: NDArray[np.int64]
    count: int
    seed: int

    def draw(self, epoch: int, lists: NDArray[np.int64]) -> Drawn:
        """See `Negatives.draw`."""
        second = choose_foreign(
            key_of(self.seed, epoch),
            lists,
            self.question[lists],
            self.codes,
            self.own,
            self.offsets,
            self.count,
        )
        return Drawn(second, np.zeros(second.shape, np.float32), np.full(second.shape, -1))


def own_negatives(
    pairs: Pairs, positives: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.int64], PoolNegatives]:
    """Those of the positives whose question has candidates of a lower grade, and these candidates.

    Args:
        pairs: the table.
        positives: int64, row numbers.
        count: negatives to draw for each.
        seed: of the run.
    """
    # In a question's candidates by rising grade, those below a grade are the first ones.
    order = np.lexsort((pairs.target, pairs.question))
    question, target = pairs.question[order], pairs.target[order]
    new_grade = np.ones(len(order), dtype=bool)
    new_grade[1:] = (question[1:] != question[:-1]) | (target[1:] != target[:-1])
    first_of_grade = np.maximum.accumulate(np.where(new_grade, np.arange(len(order)), 0))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    start = pairs.lists.offsets[pairs.question[positives]]
    size = first_of_grade[place[positives]] - start
    kept = size > 0
    negatives = PoolNegatives(
        pairs.second_row[order].astype(np.int64), target, order, start[kept], size[kept], count, seed
    )
    return positives[kept], negatives


def text_codes(pairs: Pairs) -> NDArray[np.int64]:
    """int64 [second texts]: equal where texts are copies of each other."""
    _, codes = np.unique(fold_hashes(pairs.second.texts), return_inverse=True)
    return codes.reshape(-1).astype(np.int64)


def foreign_texts(pairs: Pairs, hits: NDArray[np.int64], excluded: NDArray[np.bool_]) -> Ragged:
    """What was retrieved for each question, without some of its own texts, copies of them, and repetitions.

    Args:
        pairs: the table.
        hits: [questions, k], rows of the second texts, -1 where there are fewer.
        excluded: [P], the pairs whose second texts are to be left out.

    Returns:
        For each question rows of the second texts, best first.
    """
    codes = text_codes(pairs)
    question = np.repeat(np.arange(len(hits)), hits.shape[1])
    rows = hits.reshape(-1)
    # One number for a question and a text.
    keys = np.where(rows >= 0, question * len(codes) + codes[rows], -1)
    own = pairs.question[excluded].astype(np.int64) * len(codes) + codes[pairs.second_row[excluded]]
    is_first = np.zeros(len(keys), dtype=bool)
    is_first[np.unique(keys, return_index=True)[1]] = True
    kept = (rows >= 0) & is_first & ~np.isin(keys, own)
    sizes = np.bincount(question[kept], minlength=len(hits))
    return Ragged(rows[kept], offsets_of(sizes))
