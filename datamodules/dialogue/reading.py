"""Which turns of a dialogue are read for a question: of long dialogues, those that a retriever finds for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.storage import is_whole, lock
from datamodules.corpora.dialogues import Dialogues, ragged
from datamodules.retrieval import Retriever
from datamodules.retrieval.base import Collection


class Reading(NamedTuple):
    """The turns that are read for each of Q questions.

    Attributes:
        turns: int64, numbers of turns in the table, question after question, each in ascending order.
        counts: int64 [Q].
    """

    turns: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def latest(cls, table: Dialogues, k: int) -> Reading:
        """The k latest turns of the dialogue, or all that there are."""
        ends = np.repeat(table.turn_offsets[1:], np.diff(table.question_offsets))
        starts = np.repeat(table.turn_offsets[:-1], np.diff(table.question_offsets))
        counts = np.minimum(ends - starts, k)
        return cls(ragged(ends - counts, counts), counts)

    @classmethod
    def retrieved(cls, table: Dialogues, k: int, retriever: Retriever, folder: Path, mark: str) -> Reading:
        """The k turns of the dialogue that a retriever ranks highest; the latest ones where it finds too few.

        Args:
            table: the dialogues.
            k: turns a question.
            retriever: ranks the turns of all dialogues; it is closed afterwards.
            folder: where its index goes.
            mark: fingerprint of the turns and the ranking.
        """
        latest = cls.latest(table, k)
        of = np.repeat(np.arange(len(table)), np.diff(table.question_offsets))
        long = np.flatnonzero(np.diff(table.turn_offsets)[of] > k)
        if len(long) == 0:
            return latest
        index = folder / "index"
        with lock(folder):
            if is_whole(index, mark):
                retriever.open(index, mark)
            else:
                retriever.index(Collection(table.turns.texts, mark), index)
        texts = [table.questions.texts[int(row)] for row in long]
        starts, ends = table.turn_offsets[of[long]], table.turn_offsets[of[long] + 1]
        found = search_within(retriever, texts, k, starts, ends)
        retriever.close()
        pieces = np.split(latest.turns, np.cumsum(latest.counts)[:-1])
        for row, hits, start, end in zip(long.tolist(), found, starts.tolist(), ends.tolist(), strict=True):
            others = np.setdiff1d(np.arange(start, end), hits)[::-1]
            pieces[row] = np.sort(np.concatenate([hits, others[: k - len(hits)]]))
        return cls(np.concatenate(pieces), latest.counts)

    def save(self, folder: Path) -> None:
        """Write the files that `load` maps."""
        np.save(folder / "turns.npy", self.turns)
        np.save(folder / "counts.npy", self.counts)

    @classmethod
    def load(cls, folder: Path) -> Reading:
        """Map what `save` wrote."""
        return cls(np.load(folder / "turns.npy"), np.load(folder / "counts.npy"))


def search_within(
    retriever: Retriever, texts: Sequence[str], k: int, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The best rows of each query among some consecutive rows of the collection.

    Back ends rank whole collections, so more and more hits are asked for, until k of them are inside or there are no
    more. An Elasticsearch index gives no more than its `max_result_window` (10,000).

    Args:
        retriever: open.
        texts: n queries.
        k: rows a query at most.
        starts: [n] the first row that counts for each query.
        ends: [n] the row behind the last one.

    Returns:
        For each query at most k rows, best first.
    """
    found: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(texts)
    waiting, size = list(range(len(texts))), 4 * k
    while waiting:
        rows = retriever.search([texts[query] for query in waiting], size).rows.astype(np.int64)
        unfinished = []
        for query, hits in zip(waiting, rows, strict=True):
            found[query] = hits[(hits >= starts[query]) & (hits < ends[query])][:k]
            if len(found[query]) < k and hits[-1] >= 0:
                unfinished.append(query)
        waiting, size = unfinished, 4 * size
    return found
