"""The turns of a dialogue that are read for a question: of long dialogues, the latest or the highest ranked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.ragged import Ragged, consecutive
from datamodules.core.storage import is_whole, lock
from datamodules.corpora.dialogues import Dialogues
from datamodules.retrieval import Retriever
from datamodules.retrieval.base import Collection


def latest_turns(table: Dialogues, k: int) -> Ragged:
    """The k latest turns of the dialogue of each question [Q], as row numbers in ascending order."""
    ends = np.repeat(table.turn_offsets[1:], np.diff(table.question_offsets))
    starts = np.repeat(table.turn_offsets[:-1], np.diff(table.question_offsets))
    counts = np.minimum(ends - starts, k)
    return consecutive(ends - counts, counts)


def retrieved_turns(table: Dialogues, k: int, retriever: Retriever, folder: Path, mark: str) -> Ragged:
    """The k turns that rank highest for each question [Q], or else the latest, as row numbers in ascending order."""
    latest = latest_turns(table, k)
    dialogue = np.repeat(np.arange(len(table)), np.diff(table.question_offsets))
    long = np.flatnonzero(np.diff(table.turn_offsets)[dialogue] > k)
    if len(long) == 0:
        return latest
    index = folder / "index"
    with lock(folder):
        if is_whole(index, mark):
            retriever.open(index, mark)
        else:
            retriever.index(Collection(table.turns.texts, mark), index)
    starts, ends = table.turn_offsets[dialogue[long]], table.turn_offsets[dialogue[long] + 1]
    results = search_within(retriever, table.questions.texts.take(long), k, starts, ends)
    retriever.close()
    turns = np.split(latest.values, latest.offsets[1:-1])
    for row, hits, start, end in zip(long.tolist(), results, starts.tolist(), ends.tolist(), strict=True):
        others = np.setdiff1d(np.arange(start, end), hits)[::-1]
        turns[row] = np.sort(np.concatenate([hits, others[: k - len(hits)]]))
    return Ragged(np.concatenate(turns), latest.offsets)


def search_within(
    retriever: Retriever, texts: Sequence[str], k: int, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The at most k best rows of n queries among the rows `starts` [n] to `ends` [n] (excluded) of a collection."""
    results: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(texts)
    # Back ends rank whole collections, so the number of hits grows until k are inside or there are no more.
    waiting, size = list(range(len(texts))), 4 * k
    while waiting:
        rows = retriever.search([texts[query] for query in waiting], size).rows.astype(np.int64)
        unfinished = []
        for query, hits in zip(waiting, rows, strict=True):
            results[query] = hits[(hits >= starts[query]) & (hits < ends[query])][:k]
            if len(results[query]) < k and hits[-1] >= 0:
                unfinished.append(query)
        waiting, size = unfinished, 4 * size
    return results
