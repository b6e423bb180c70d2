"""What a model of dialogues reads for questions whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from callbacks.charts import Chart
from zoo.tasks.dialogue_predictor import Answer

#: Questions that a chart shows.
MOST_QUESTIONS = 30


def charts_of(answers: Sequence[tuple[Answer, str | None]]) -> Iterator[Chart]:
    """Charts of answers, each beside the right one."""
    first = [answer for answer, _ in answers[:MOST_QUESTIONS]]
    turns = 1 + max((turn.number for answer in first for turn in answer.turns), default=-1)
    lines: list[list[Any]] = []
    for answer in first:
        attention = [0.0] * turns
        for turn in answer.turns:
            attention[turn.number] = turn.attention
        lines.append([answer.question, *attention])
    yield Chart(
        "attention",
        "Attention on the turns that are kept",
        ["question", *map(str, range(1, turns + 1))],
        lines,
        "map",
    )
    known = [(answer, right) for answer, right in answers if right is not None]
    places = max((len(answer.turns) for answer, _ in known), default=0)
    hits = [[right in turn.text.split() for turn in answer.turns] for answer, right in known]
    found: list[list[Any]] = [
        [rank, sum(any(hit[:rank]) for hit in hits) / len(hits)] for rank in range(1, places + 1)
    ]
    columns = ["rank", "questions whose answer is in a turn up to here"]
    yield Chart("kept_turns", "What k-max pooling keeps, by rank", columns, found, "lines")
