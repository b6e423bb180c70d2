"""What a model of dialogues reads for questions whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from callbacks.chart import Chart
from datamodules.corpora.dialogues import Dialogues
from zoo.tasks.dialogue.predictor import Answer

#: Questions that a chart shows.
MOST_QUESTIONS = 30


def charts_of(answers: Sequence[tuple[Answer, str | None]], dialogues: Dialogues) -> Iterator[Chart]:
    """Charts of answers, each beside the right one.

    Args:
        answers: to the first questions of the dialogues, in order.
        dialogues: the table.
    """
    yield _attention_map(answers[:MOST_QUESTIONS], dialogues)
    known = [(answer, right) for answer, right in answers if right is not None]
    if not known:
        return
    places = max(len(answer.turns) for answer, _ in known)
    hits = [[right in turn.text.split() for turn in answer.turns] for answer, right in known]
    found: list[list[Any]] = [
        [rank, sum(any(hit[:rank]) for hit in hits) / len(hits)] for rank in range(1, places + 1)
    ]
    columns = ["rank", "questions whose answer is in a turn up to here"]
    yield Chart(
        "kept_turns",
        "Questions whose answer is in a turn that is kept, by rank",
        columns,
        found,
        "lines",
        value="share of the questions",
    )


def _attention_map(answers: Sequence[tuple[Answer, str | None]], dialogues: Dialogues) -> Chart:
    """Attention on the turns that were kept, and which turns hold the answer."""
    starts = dialogues.turn_offsets
    asked_in = np.repeat(np.arange(len(dialogues)), np.diff(dialogues.question_offsets))[: len(answers)]
    turns = int(np.diff(starts)[asked_in].max(initial=0))
    lines: list[list[Any]] = []
    holding: list[list[int]] = []
    for (answer, right), dialogue in zip(answers, asked_in.tolist(), strict=True):
        attention: list[float | None] = [None] * turns
        for turn in answer.turns:
            attention[turn.number] = turn.attention
        lines.append([f"{dialogues.ids[dialogue]}: {answer.question}", *attention])
        texts = dialogues.turns.texts[int(starts[dialogue]) : int(starts[dialogue + 1])]
        holding.append([number for number, text in enumerate(texts) if right in text.split()])
    return Chart(
        "attention",
        f"Attention on the turns that are kept, of the first {len(lines)} questions",
        ["dialogue: question", *map(str, range(1, turns + 1))],
        lines,
        "map",
        value="attention",
        across="turn",
        mark="holds the answer",
        marked=holding,
    )
