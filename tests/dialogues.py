"""Made-up dialogues of a garden shop, with questions whose answers are mostly words that no other dialogue has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: What the shop asks, what the client says to it, what is asked afterwards.
TOPICS = {
    "name": ("who is it for ?", "it is for {} .", "what is the name ?"),
    "plant": ("which plant do you want ?", "i want a {} please", "which plant is wanted ?"),
    "day": ("when do you come ?", "on {}", "what is the day ?"),
}
SYLLABLES = ["ka", "lo", "mi", "ru", "ste", "vo", "zi", "pa", "ne", "du"]
DAYS = ["monday", "tuesday", "friday"]


class MadeUp(NamedTuple):
    """A dialogue with its questions and answers."""

    turns: list[str]
    questions: list[str]
    answers: list[str]


def made_up(number: int, seed: int) -> list[MadeUp]:
    """So many dialogues; topics come in any order, and some dialogues lack one."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(number):
        turns, questions, answers = ["good day ."], [], []
        topics = list(TOPICS)
        random.shuffle(topics)
        for topic in topics[: 2 + i % 2]:
            invented = "".join(random.choice(SYLLABLES, size=4))
            answer = str(random.choice(DAYS)) if topic == "day" else invented
            ask, say, question = TOPICS[topic]
            turns += [ask, say.format(answer)]
            questions.append(question)
            answers.append(answer)
        found.append(MadeUp([*turns, "thank you !"], questions, answers))
    return found


def write_published(path: Path, dialogues: list[MadeUp]) -> Path:
    """As the published files: numbered lines, the questions with answer and a number."""
    lines = []
    for one in dialogues:
        asked = [f"{q}\t{a}\t{len(one.turns)}" for q, a in zip(one.questions, one.answers, strict=True)]
        lines += [f"{number} {text}" for number, text in enumerate([*one.turns, *asked], 1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_jsonl(path: Path, dialogues: list[MadeUp]) -> Path:
    """One object a question."""
    with path.open("w", encoding="utf-8") as file:
        for one in dialogues:
            for question, answer in zip(one.questions, one.answers, strict=True):
                record = {"turns": one.turns, "question": question, "answer": answer}
                file.write(json.dumps(record) + "\n")
    return path
