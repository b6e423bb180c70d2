"""Which words a recurrent network takes for keywords, and which of its cells for which topics.

The rules are those of Palangi et al. 2016, Section V-A. The embedding of a text is y at its last word; its most active
cells are the ten of the largest |y| there. A word is credited with each of these cells whose value changes strongly at
that word. It is a keyword if more than 40 per cent of them are credited to it, in both directions where the text is
read in both. Before the first word all cells are 0, so that they always change there: a direction has no number for
the word that it reads first, and the other one decides alone.

The paper does not say what a strong change is. Here it is one by more than a share of the cell's value at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from zoo.tasks.predictor import ReadText

#: What a direction is called, in the order of the halves of a network's values.
DIRECTIONS = ("left to right", "right to left")


@dataclass(frozen=True)
class Rules:
    """What counts as active, as a change, as a keyword and as a topic's word.

    Attributes:
        top: a text's most active cells that are looked at; fewer where a network has fewer.
        change: a cell's value changes strongly at a word if it changes by more than this share of its last value.
        share: of those cells, the share that a keyword needs more than.
        topic_cells: a text's most active cells that its keywords are allocated to.
    """

    top: int = 10
    change: float = 0.2
    share: float = 0.4
    topic_cells: int = 5

    def __post_init__(self) -> None:
        for name in ("top", "topic_cells"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} {getattr(self, name)}: must be 1 or more")
        if self.change < 0:
            raise InputError(f"--change {self.change}: must be 0 or more")
        if not 0 <= self.share < 1:
            raise InputError(f"--share {self.share}: must be at least 0 and below 1")


class Activity(NamedTuple):
    """The most active cells of a text of T words, read in one direction; A of them."""

    #: one of `DIRECTIONS`.
    reads: str
    #: int64 [A]: cells, counted from 1 over both directions, the most active first.
    cells: NDArray[np.int64]
    #: float32 [T, A]: y of these cells at each word, in the order of the text.
    values: NDArray[np.float32]
    #: bool [T, A]: whether a word is credited with a cell; False for the word that is read first.
    credited: NDArray[np.bool_]
    #: how many cells each word is credited with; None for the word that is read first.
    counts: list[int | None]


class Keywords(NamedTuple):
    """A text with what a network makes of its words."""

    text: ReadText
    #: one or two.
    activities: list[Activity]
    #: of each word, whether it is a keyword.
    is_keyword: list[bool]


def find_keywords(text: ReadText, rules: Rules) -> Keywords:
    """The keywords of a text."""
    activities = [_activity(text, direction, rules) for direction in range(text.directions)]
    is_keyword = []
    for word in range(len(text.words)):
        told = [(one.counts[word], len(one.cells)) for one in activities]
        numbers = [(count, cells) for count, cells in told if count is not None]
        is_keyword.append(bool(numbers) and all(count > rules.share * cells for count, cells in numbers))
    return Keywords(text, activities, is_keyword)


def _activity(text: ReadText, direction: int, rules: Rules) -> Activity:
    state = text.parts["state"]
    size = state.shape[1] // text.directions
    y = state[:, direction * size : (direction + 1) * size]
    order = slice(None, None, -1 if direction else 1)  # as the words are read, and back
    read = y[order]
    last = np.abs(read[-1]) if len(read) else np.zeros(size, np.float32)
    cells = np.argsort(-last, kind="stable")[: rules.top]
    credited = np.zeros((len(read), len(cells)), bool)
    credited[1:] = np.abs(np.diff(read[:, cells], axis=0)) > rules.change * last[cells]
    counts: list[int | None] = [int(each) for each in credited.sum(axis=1)]
    counts[:1] = [None] * len(counts[:1])
    return Activity(
        DIRECTIONS[direction],
        1 + direction * size + cells,
        y[:, cells],
        credited[order],
        counts[order],
    )


class Topic(NamedTuple):
    """Keywords of a text that one of its most active cells picks out."""

    text: str
    #: counted from 1 over both directions.
    cell: int
    words: list[str]


def allocate_topics(texts: Iterable[Keywords], rules: Rules) -> Iterator[Topic]:
    """The keywords that each text's most active cells pick out, where there are any (the paper's Table III)."""
    for found in texts:
        for activity in found.activities:
            for place, cell in enumerate(activity.cells[: rules.topic_cells].tolist()):
                credited = activity.credited[:, place]
                words = [
                    word
                    for word, is_keyword, is_credited in zip(
                        found.text.words, found.is_keyword, credited, strict=True
                    )
                    if is_keyword and is_credited
                ]
                if words:
                    yield Topic(found.text.text, cell, words)


def words_by_cell(topics: Sequence[Topic]) -> dict[int, list[tuple[str, int]]]:
    """For each cell the words that it picks out, with in how many texts; the most frequent first."""
    counts: dict[int, Counter[str]] = {}
    for topic in topics:
        counts.setdefault(topic.cell, Counter()).update(set(topic.words))
    return {
        cell: sorted(counts[cell].items(), key=lambda counted: (-counted[1], counted[0]))
        for cell in sorted(counts)
    }
