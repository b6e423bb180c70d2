"""Keywords that a recurrent network finds in a text, and the topics of its cells (Palangi et al. 2016, Section V-A).

A word is credited with each of the text's most active cells whose value changes strongly at it. A keyword is credited
with more than 40 percent of them, in both directions if the text is read in both. All cells change at the first word: a
direction has no count for the word that it reads first. The paper does not define a strong change; here it is more than
a share of the cell's value at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError, check_count
from zoo.tasks.retrieval.predictor import ReadText

#: Names of the directions, in the order of the halves of a network's values.
DIRECTIONS = ("left to right", "right to left")


@dataclass(frozen=True)
class Rules:
    """Thresholds of active cells, changes, keywords and topics; `zoo inspect --help` describes them."""

    top: int = 10
    change: float = 0.2
    share: float = 0.4
    topic_cells: int = 5

    def __post_init__(self) -> None:
        check_count("top", self.top)
        check_count("topic_cells", self.topic_cells)
        if self.change < 0 or not 0 <= self.share < 1:
            raise InputError(
                f"--change {self.change} --share {self.share}: must be 0 or more, and the share below 1"
            )


class Activity(NamedTuple):
    """The A most active cells of a text of T words, read in one direction."""

    direction: str
    #: int64 [A]: cells, counted from 1 over both directions, the most active first.
    cells: NDArray[np.int64]
    #: float32 [T, A]: y of these cells at each word, in the order of the text.
    values: NDArray[np.float32]
    #: bool [T, A]: whether a word is credited with a cell; False for the word that is read first.
    credited: NDArray[np.bool_]
    #: cells that each word is credited with; None for the word that is read first.
    counts: list[int | None]


class Keywords(NamedTuple):
    """A text with the activity of each direction, and the keywords among its words."""

    text: ReadText
    activities: list[Activity]
    is_keyword: list[bool]


class Topic(NamedTuple):
    """Keywords of a text that one of its most active cells picks out; cells are numbered as in `Activity`."""

    text: str
    cell: int
    words: list[str]


def find_keywords(text: ReadText, rules: Rules) -> Keywords:
    """Find the keywords of a text."""
    activities = [_activity(text, direction, rules) for direction in range(text.directions)]
    is_keyword = []
    for word in range(len(text.words)):
        counts = [(activity.counts[word], len(activity.cells)) for activity in activities]
        enough = [count > rules.share * cells for count, cells in counts if count is not None]
        is_keyword.append(bool(enough) and all(enough))
    return Keywords(text, activities, is_keyword)


def _activity(text: ReadText, direction: int, rules: Rules) -> Activity:
    state = text.parts["state"]
    size = state.shape[1] // text.directions
    y = state[:, direction * size : (direction + 1) * size]
    order = slice(None, None, -1 if direction else 1)  # from the text's order to the reading's, and back
    read = y[order]
    last = np.abs(read[-1]) if len(read) else np.zeros(size, np.float32)
    cells = np.argsort(-last, kind="stable")[: rules.top]
    credited = np.zeros((len(read), len(cells)), bool)
    credited[1:] = np.abs(np.diff(read[:, cells], axis=0)) > rules.change * last[cells]
    counts: list[int | None] = [None, *credited[1:].sum(axis=1).tolist()] if len(read) else []
    cell_numbers = 1 + direction * size + cells
    return Activity(DIRECTIONS[direction], cell_numbers, y[:, cells], credited[order], counts[order])


def allocate_topics(texts: Iterable[Keywords], rules: Rules) -> Iterator[Topic]:
    """Yield the keywords that each text's most active cells pick out, where there are any (Table III)."""
    for keywords in texts:
        for activity in keywords.activities:
            for cell, credited in zip(activity.cells[: rules.topic_cells], activity.credited.T, strict=False):
                words = list(compress(keywords.text.words, credited & np.array(keywords.is_keyword, bool)))
                if words:
                    yield Topic(keywords.text.text, int(cell), words)


def words_by_cell(topics: Sequence[Topic]) -> dict[int, list[tuple[str, int]]]:
    """Count for each cell the texts in which it picks out a word; most frequent words first."""
    counts: dict[int, Counter[str]] = {}
    for topic in topics:
        counts.setdefault(topic.cell, Counter()).update(set(topic.words))
    return {
        cell: sorted(counts[cell].items(), key=lambda counted: (-counted[1], counted[0]))
        for cell in sorted(counts)
    }
