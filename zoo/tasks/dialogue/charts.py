"""Charts of the turns that a model of dialogues reads for questions with known answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from callbacks.chart import Cell, Chart
from datamodules.corpora.dialogues import Dialogues
from zoo.tasks.dialogue.predictor import Answer

#: Questions in a chart of single questions.
MOST_QUESTIONS = 30


def charts_of(answers: Sequence[tuple[Answer, str | None]], dialogues: Dialogues) -> Iterator[Chart]:
    """Charts of predicted answers to the first questions of the dialogues, each with the right one."""
    yield _attention_map(answers[:MOST_QUESTIONS], dialogues)
    known = [(answer, right) for answer, right in answers if right is not None]
    if not known:
        return
    ranks = range(1, 1 + max(len(answer.turns) for answer, _ in known))
    hits = [[right in turn.text.split() for turn in answer.turns] for answer, right in known]
    shares = [sum(any(hit[:rank]) for hit in hits) / len(hits) for rank in ranks]
    yield Chart(
        "kept_turns",
        "Questions whose answer is in a turn that is kept, by rank",
        ["rank", "questions whose answer is in a turn up to here"],
        list(zip(ranks, shares, strict=True)),
        "lines",
        value="share of the questions",
    )


def _attention_map(answers: Sequence[tuple[Answer, str | None]], dialogues: Dialogues) -> Chart:
    """Attention on the turns that were kept, turns with the answer marked."""
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
