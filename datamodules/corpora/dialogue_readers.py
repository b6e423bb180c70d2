"""Readers of dialogues: the published files of HMN4QA, and tables with columns that the user names."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datamodules.core.errors import InputError
from datamodules.corpora.dialogues import Dialogue, Dialogues
from datamodules.corpora.readers import open_lines, open_records
from datamodules.corpora.records import Column, Columns

log = logging.getLogger(__name__)

_LINE = re.compile(r"(\d+) (.*)")
_QUESTION_MARK = re.compile(r"(?<=[^\s?？])([?？]+)(?=\s|$)")


@dataclass
class _Open:
    """A dialogue that is still being read."""

    id: str
    turns: list[str]
    questions: list[str] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add(self, question: str, answer: str | None, place: str) -> None:
        if answer is not None and not answer.strip():
            raise InputError(f"{place}: an empty answer; write the word of the dialogue that answers it")
        self.questions.append(with_free_question_marks(question))
        self.answers.append(answer)
        self.places.append(place)

    def closed(self) -> Dialogue:
        turns = [with_free_question_marks(turn) for turn in self.turns]
        return Dialogue(self.id, turns, self.questions, self.answers, self.places)


def with_free_question_marks(text: str) -> str:
    """The text with a space before a question mark that ends a word: the mark belongs to no word."""
    return _QUESTION_MARK.sub(r" \1", text)


def read_hmn4qa(path: str | Path) -> Dialogues:
    """A published file: lines `1 turn`, `2 turn`, ..., then `n question<TAB>answer<TAB>number`; 1 starts a dialogue.

    The third field is the number of the last turn; it says nothing of where the answer is, and is not used.

    J. Xu et al.: Hierarchical Memory Networks for Answer Selection on Unknown Words, COLING 2016.

    Raises:
        InputError: a line of another kind; names file and line.
    """
    found: list[_Open] = []
    last = 0
    for number, line in enumerate(open_lines(path), 1):
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        match = _LINE.match(line.rstrip("\r\n"))
        if match is None:
            raise InputError(f"{place}: starts with no number; write `1 words of the first turn`")
        count, (text, *fields) = int(match[1]), match[2].split("\t")
        if count == 1 and last != 1:
            found.append(_Open(str(len(found) + 1), []))
        elif count != last + 1 or not found:
            twice = (
                f"the id {count} stands twice in this dialogue" if count <= last else f"{count} after {last}"
            )
            raise InputError(f"{place}: {twice}; number the lines of a dialogue 1, 2, 3, ...")
        last = count
        if not fields:
            if found[-1].questions:
                raise InputError(f"{place}: a turn after a question; write all turns of a dialogue first")
            found[-1].turns.append(text)
        elif len(fields) != 2:
            raise InputError(
                f"{place}: {len(fields) + 1} columns; write question, answer and the number of the last turn"
            )
        elif not found[-1].turns:
            raise InputError(f"{place}: a question before any turn; write the turns of the dialogue first")
        else:
            found[-1].add(text, fields[0], place)
    return _table(found, str(path))


def read_dialogues(
    path: str | Path,
    turns_column: Column = "turns",
    question_column: Column = "question",
    answer_column: Column | None = "answer",
    id_column: Column | None = None,
) -> Dialogues:
    """Read dialogues from .jsonl (also .gz, .xz) or .parquet, a saved data set or the Hub.

    A record has the list of turns and a question with its answer, or lists of questions and answers. Records of the
    same dialogue (the same id, or without ids the same turns) are put together.

    Args:
        path: see `read_table`.
        turns_column: name or number of the list of turns.
        question_column: of the question or questions.
        answer_column: of the answer or answers, one token each; None where there are none.
        id_column: of an id of the dialogue.

    Raises:
        InputError: the table can't be read; names file and row.
    """
    columns = Columns([turns_column, question_column], answer_column, id_column)
    records = open_records(path, columns)
    found: dict[Any, _Open] = {}
    for block in records.blocks():
        for i, fields in enumerate(zip(*block.columns, strict=True)):
            place = block.place(i)
            turns = _strings(fields[0], place, turns_column)
            if not turns:
                raise InputError(f"{place}: a dialogue without turns; give at least one in {turns_column!r}")
            name = str(len(found) + 1 if id_column is None else fields[-1])
            key = tuple(turns) if id_column is None else name
            one = found.setdefault(key, _Open(name, turns))
            if one.turns != turns:
                raise InputError(
                    f"{place}: the id {name!r} stands for another dialogue already; give it its own"
                )
            _add_questions(one, fields, place, question_column, answer_column)
    return _table(list(found.values()), records.source)


def _add_questions(
    one: _Open, fields: Sequence[Any], place: str, question_column: Column, answer_column: Column | None
) -> None:
    questions = _strings(fields[1], place, question_column)
    answers: Sequence[str | None] = [None] * len(questions)
    if answer_column is not None:
        answers = _strings(fields[2], place, answer_column)
    if len(answers) != len(questions):
        raise InputError(
            f"{place}: {len(questions)} questions, but {len(answers)} answers; give each question an answer"
        )
    for question, answer in zip(questions, answers, strict=True):
        one.add(question, answer, place)


def _strings(value: Any, place: str, column: Column) -> list[str]:
    """A string, or a list of strings, as a list."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise InputError(f"{place}: column {column!r} holds no string and no list of strings; correct it")
    return strings


def _table(found: list[_Open], source: str) -> Dialogues:
    kept = [one.closed() for one in found if one.questions]
    if not kept:
        raise InputError(f"{source}: no question; give a file with at least one")
    if len(kept) < len(found):
        log.warning("%s: %d dialogues have no question and are left out", source, len(found) - len(kept))
    return Dialogues.from_list(kept, source)
