"""A chart of the turns that a model of dialogues reads for questions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from callbacks.chart import Cell, Chart
from datamodules.corpora.dialogues import Dialogues
from zoo.tasks.dialogue.predictor import Answer

#: Questions in a chart of single questions.
MOST_QUESTIONS = 30


def attention_chart(answers: Sequence[tuple[Answer, str | None]], dialogues: Dialogues) -> Chart:
    """Attention on the turns that were kept for questions, each with its right answer; turns with the answer marked."""
    answers = answers[:MOST_QUESTIONS]
    starts = dialogues.turn_offsets
    dialogue_of = np.repeat(np.arange(len(dialogues)), np.diff(dialogues.question_offsets))[: len(answers)]
    turns = int(np.diff(starts)[dialogue_of].max(initial=0))
    rows: list[list[Cell]] = []
    holding: list[list[int]] = []
    for (answer, right), dialogue in zip(answers, dialogue_of.tolist(), strict=True):
        attention: list[float | None] = [None] * turns
        for turn in answer.turns:
            attention[turn.number] = turn.attention
        rows.append([f"{dialogues.ids[dialogue]}: {answer.question}", *attention])
        texts = dialogues.turns.texts[int(starts[dialogue]) : int(starts[dialogue + 1])]
        holding.append([number for number, text in enumerate(texts) if right in text.split()])
    return Chart(
        "attention",
        f"Attention on the turns that are kept, for {len(rows)} questions",
        ["dialogue: question", *map(str, range(1, turns + 1))],
        rows,
        "map",
        value="attention",
        across="turn",
        mark="holds the answer",
        marked=holding,
    )
