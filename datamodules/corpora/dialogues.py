"""Dialogues with questions about them, each with an answer of one word, and readers: HMN4QA's files, and tables."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from datamodules.core.errors import InputError
from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.readers import open_lines, read_blocks
from datamodules.corpora.records import Column, Columns
from datamodules.corpora.rows import Rows, StoredTable

log = logging.getLogger(__name__)

_LINE = re.compile(r"(\d+) (.*)")
_QUESTION_MARK = re.compile(r"(?<=[^\s?？])([?？]+)(?=\s|$)")


@dataclass
class Dialogue:
    """One dialogue."""

    id: str
    turns: list[str]
    #: each with its answer, None where it is not known, and its file and line, or row, for messages.
    questions: list[tuple[str, str | None, str]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Dialogues(StoredTable):
    """A table of D dialogues."""

    #: the turns of all dialogues.
    turns: Rows
    #: [D + 1]; dialogue i has the turns `turn_offsets[i]:turn_offsets[i + 1]`.
    turn_offsets: NDArray[np.int64]
    #: the questions of all dialogues; the id is the question's location, the label its answer.
    questions: Rows
    #: [D + 1].
    question_offsets: NDArray[np.int64]
    ids: pa.StringArray
    source: str = "a table"

    @staticmethod
    def from_list(dialogues: Sequence[Dialogue], source: str = "dialogues") -> Dialogues:
        """Make a table of dialogues with questions in memory."""
        asked = [question for dialogue in dialogues for question in dialogue.questions]
        questions, answers, locations = map(list, zip(*asked, strict=True))
        return Dialogues(
            Rows.from_lists((turn for dialogue in dialogues for turn in dialogue.turns), source=source),
            offsets_of([len(dialogue.turns) for dialogue in dialogues]),
            Rows.from_lists(questions, answers, locations, source),
            offsets_of([len(dialogue.questions) for dialogue in dialogues]),
            pa.array([dialogue.id for dialogue in dialogues], pa.string()),
            source,
        )

    @staticmethod
    def concat(parts: Sequence[Dialogues]) -> Dialogues:
        """Concatenate the dialogues of several tables."""
        return Dialogues(
            Rows.concat([part.turns for part in parts]),
            offsets_of(np.concatenate([np.diff(part.turn_offsets) for part in parts])),
            Rows.concat([part.questions for part in parts]),
            offsets_of(np.concatenate([np.diff(part.question_offsets) for part in parts])),
            pa.array([name for part in parts for name in part.ids.to_pylist()], pa.string()),
            " + ".join(part.source for part in parts),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, numbers: ArrayLike) -> Dialogues:
        """Return the dialogues with these numbers, in the order given."""
        chosen = np.asarray(numbers, np.int64)
        turns = Ragged(np.arange(len(self.turns)), self.turn_offsets).take(chosen)
        questions = Ragged(np.arange(len(self.questions)), self.question_offsets).take(chosen)
        return replace(
            self,
            turns=self.turns.select(turns.values),
            turn_offsets=turns.offsets,
            questions=self.questions.select(questions.values),
            question_offsets=questions.offsets,
            ids=self.ids.take(pa.array(chosen)),
        )


def with_free_question_marks(text: str) -> str:
    """Put a space before question marks at the end of a word, so that they are no part of it."""
    return _QUESTION_MARK.sub(r" \1", text)


def read_hmn4qa(path: str | Path) -> Dialogues:
    """Read a published file: lines `1 turn`, `2 turn`, ..., then `n question<TAB>answer<TAB>number of the last turn`.

    J. Xu et al.: Hierarchical Memory Networks for Answer Selection on Unknown Words, COLING 2016.
    """
    dialogues: list[Dialogue] = []
    last = 0
    for number, line in enumerate(open_lines(path), 1):
        location = f"{path}, line {number}"
        if not line.strip():
            continue
        match = _LINE.match(line.rstrip("\r\n"))
        if match is None:
            raise InputError(f"{location}: does not start with a number; write `1 words of the first turn`")
        count, (text, *fields) = int(match[1]), match[2].split("\t")
        if count == 1 and last != 1:
            dialogues.append(Dialogue(str(len(dialogues) + 1), []))
        elif count != last + 1 or not dialogues:
            raise InputError(f"{location}: {count} after {last}; number the lines of a dialogue 1, 2, 3, ...")
        last = count
        dialogue = dialogues[-1]
        if not fields:
            if dialogue.questions:
                raise InputError(f"{location}: a turn after a question; write all turns of a dialogue first")
            dialogue.turns.append(text)
        elif len(fields) != 2:
            raise InputError(f"{location}: {len(fields) + 1} columns; write question, answer and last turn")
        elif not dialogue.turns:
            raise InputError(f"{location}: a question before any turn; write the turns of the dialogue first")
        else:
            _add_question(dialogue, text, fields[0], location)
    return _table(dialogues, str(path))


def read_dialogues(
    path: str | Path,
    turns_column: Column = "turns",
    question_column: Column = "question",
    answer_column: Column | None = "answer",
    id_column: Column | None = None,
) -> Dialogues:
    """Read dialogues from .jsonl (also .gz, .xz) or .parquet, a saved data set or the Hub.

    A record has turns and a question with its answer, or lists of both; records with the same id or turns are joined.
    """
    columns = Columns([turns_column, question_column], answer_column, id_column)
    dialogues: dict[object, Dialogue] = {}
    for block in read_blocks(path, columns):
        for record, fields in enumerate(zip(*block.columns, strict=True)):
            location = block.location(record)
            turns = _strings(fields[0], location, turns_column)
            if not turns:
                raise InputError(f"{location}: a dialogue without turns; add some in {turns_column!r}")
            name = str(len(dialogues) + 1 if id_column is None else fields[-1])
            key = tuple(turns) if id_column is None else name
            dialogue = dialogues.setdefault(key, Dialogue(name, turns))
            if dialogue.turns != turns:
                raise InputError(f"{location}: another dialogue has the id {name!r}; give it its own")
            questions = _strings(fields[1], location, question_column)
            answers: Sequence[str | None] = [None] * len(questions)
            if answer_column is not None:
                answers = _strings(fields[2], location, answer_column)
            if len(answers) != len(questions):
                raise InputError(f"{location}: {len(answers)} answers for {len(questions)} questions")
            for question, answer in zip(questions, answers, strict=True):
                _add_question(dialogue, question, answer, location)
    return _table(list(dialogues.values()), str(path))


def _add_question(dialogue: Dialogue, question: str, answer: str | None, location: str) -> None:
    if answer is not None and not answer.strip():
        raise InputError(f"{location}: an empty answer; write the word of the dialogue that answers it")
    dialogue.questions.append((with_free_question_marks(question), answer, location))


def _strings(value: object, location: str, column: Column) -> list[str]:
    """Return a string, or a list of strings, as a list."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise InputError(f"{location}: column {column!r} is not a string or a list of strings; correct it")
    return strings


def _table(dialogues: list[Dialogue], source: str) -> Dialogues:
    kept = [dialogue for dialogue in dialogues if dialogue.questions]
    for dialogue in kept:
        dialogue.turns = list(map(with_free_question_marks, dialogue.turns))
    if not kept:
        raise InputError(f"{source}: no questions; give a file with at least one")
    if skipped := len(dialogues) - len(kept):
        log.warning("%s: %d dialogues have no question and are skipped", source, skipped)
    return Dialogues.from_list(kept, source)
