"""Dialogues with questions about them: turns, and questions each with an answer of one word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from datamodules.corpora.rows import Rows


class Dialogue(NamedTuple):
    """One dialogue as a reader yields it."""

    id: str
    turns: Sequence[str]
    questions: Sequence[str]
    #: an answer a question; None where it is not known.
    answers: Sequence[str | None]
    #: where each question stands, for messages.
    places: Sequence[str]


@dataclass(frozen=True, eq=False)
class Dialogues:
    """A table of D dialogues.

    Attributes:
        turns: the turns of all dialogues, one dialogue after another.
        turn_offsets: int64 [D + 1]; dialogue i has the turns `turn_offsets[i]:turn_offsets[i + 1]`.
        questions: the questions, likewise; the id is where a question stands, the label is its answer.
        question_offsets: int64 [D + 1].
        ids: of the dialogues.
        source: what messages call the table.
    """

    turns: Rows
    turn_offsets: NDArray[np.int64]
    questions: Rows
    question_offsets: NDArray[np.int64]
    ids: list[str]
    source: str

    @staticmethod
    def from_list(dialogues: Sequence[Dialogue], source: str = "dialogues") -> Dialogues:
        """Dialogues in memory."""
        return Dialogues(
            Rows.from_lists((turn for one in dialogues for turn in one.turns), source=source),
            _offsets([len(one.turns) for one in dialogues]),
            Rows.from_lists(
                (question for one in dialogues for question in one.questions),
                [answer for one in dialogues for answer in one.answers],
                [place for one in dialogues for place in one.places],
                source,
            ),
            _offsets([len(one.questions) for one in dialogues]),
            [one.id for one in dialogues],
            source,
        )

    @staticmethod
    def concat(parts: Sequence[Dialogues]) -> Dialogues:
        """The dialogues of several tables, one after another."""
        return Dialogues(
            Rows.concat([part.turns for part in parts]),
            _offsets(np.concatenate([np.diff(part.turn_offsets) for part in parts])),
            Rows.concat([part.questions for part in parts]),
            _offsets(np.concatenate([np.diff(part.question_offsets) for part in parts])),
            [name for part in parts for name in part.ids],
            " + ".join(part.source for part in parts),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, numbers: ArrayLike) -> Dialogues:
        """The dialogues with these numbers, in the order given."""
        chosen = np.asarray(numbers, np.int64)
        turn_counts, question_counts = (
            np.diff(offsets)[chosen] for offsets in (self.turn_offsets, self.question_offsets)
        )
        return replace(
            self,
            turns=self.turns.select(ragged(self.turn_offsets[chosen], turn_counts)),
            turn_offsets=_offsets(turn_counts),
            questions=self.questions.select(ragged(self.question_offsets[chosen], question_counts)),
            question_offsets=_offsets(question_counts),
            ids=[self.ids[number] for number in chosen.tolist()],
        )

    def save(self, folder: Path) -> None:
        """Write the files that `load` maps."""
        self.turns.save(folder / "turns.arrow")
        self.questions.save(folder / "questions.arrow")
        np.save(folder / "turn_offsets.npy", self.turn_offsets)
        np.save(folder / "question_offsets.npy", self.question_offsets)
        (folder / "ids.json").write_text(json.dumps(self.ids))

    @staticmethod
    def load(folder: Path, source: str) -> Dialogues:
        """Map what `save` wrote."""
        return Dialogues(
            replace(Rows.load(folder / "turns.arrow"), source=source),
            np.load(folder / "turn_offsets.npy"),
            replace(Rows.load(folder / "questions.arrow"), source=source),
            np.load(folder / "question_offsets.npy"),
            json.loads((folder / "ids.json").read_text()),
            source,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the turns, questions, answers and ids."""
        digest = hashlib.sha256(self.turns.fingerprint.encode() + self.questions.fingerprint.encode())
        for offsets in (self.turn_offsets, self.question_offsets):
            digest.update(offsets.astype("<i8").tobytes())
        digest.update(json.dumps(self.ids).encode())
        return digest.hexdigest()


def ragged(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of consecutive pieces: `starts[i], starts[i] + 1, ...`, `counts[i]` of them, for each i."""
    return np.repeat(starts, counts) + within(counts)


def within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... `counts[i] - 1` for each i, one after another."""
    places: NDArray[np.int64] = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


def _offsets(counts: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)
