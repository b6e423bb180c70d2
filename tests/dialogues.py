"""Made-up dialogues of a garden shop, with questions whose answers are mostly words of that dialogue alone."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: Question of the shop, reply of the client, question about the dialogue.
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
    """A number of dialogues; topics come in any order, and some dialogues lack one."""
    random = np.random.default_rng(seed)
    dialogues = []
    for i in range(number):
        turns, questions, answers = ["good day ."], [], []
        topics = list(TOPICS)
        random.shuffle(topics)
        for topic in topics[: 2 + i % 2]:
            invented = "".join(random.choice(SYLLABLES, size=4))
            answer = str(random.choice(DAYS)) if topic == "day" else invented
            ask, reply, question = TOPICS[topic]
            turns += [ask, reply.format(answer)]
            questions.append(question)
            answers.append(answer)
        dialogues.append(MadeUp([*turns, "thank you !"], questions, answers))
    return dialogues


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_records(path: Path, *records: dict[str, object]) -> Path:
    return write_lines(path, *map(json.dumps, records))


def write_published(path: Path, dialogues: list[MadeUp]) -> Path:
    """The published layout: numbered lines, the questions with answer and a number."""
    lines = []
    for turns, questions, answers in dialogues:
        asked = [f"{q}\t{a}\t{len(turns)}" for q, a in zip(questions, answers, strict=True)]
        lines += [f"{number} {text}" for number, text in enumerate([*turns, *asked], 1)]
    return write_lines(path, *lines)


def write_jsonl(path: Path, dialogues: list[MadeUp]) -> Path:
    records = [
        {"turns": turns, "question": question, "answer": answer}
        for turns, questions, answers in dialogues
        for question, answer in zip(questions, answers, strict=True)
    ]
    return write_records(path, *records)
