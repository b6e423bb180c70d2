"""Dialogues with questions about them: turns, and questions each with an answer of one word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from datamodules.core.ragged import Ragged, offsets_of
from datamodules.corpora.rows import Rows, StoredTable


@dataclass
class Dialogue:
    """One dialogue."""

    id: str
    turns: list[str]
    questions: list[str] = field(default_factory=list)
    #: the answer of each question; None where it is not known.
    answers: list[str | None] = field(default_factory=list)
    #: file and line, or row, of each question, for messages.
    locations: list[str] = field(default_factory=list)


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
    source: str

    @staticmethod
    def from_list(dialogues: Sequence[Dialogue], source: str = "dialogues") -> Dialogues:
        """Make a table of dialogues in memory."""
        return Dialogues(
            Rows.from_lists((turn for dialogue in dialogues for turn in dialogue.turns), source=source),
            offsets_of([len(dialogue.turns) for dialogue in dialogues]),
            Rows.from_lists(
                (question for dialogue in dialogues for question in dialogue.questions),
                [answer for dialogue in dialogues for answer in dialogue.answers],
                [location for dialogue in dialogues for location in dialogue.locations],
                source,
            ),
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
