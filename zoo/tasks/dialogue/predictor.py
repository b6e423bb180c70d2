"""Predictions of a trained dialogue model: a dialogue and questions in, words with their evidence out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor
from typing_extensions import override

from datamodules.batch import DialogueBatch
from datamodules.core.errors import InputError
from datamodules.core.shards import WHOLE, Shard
from datamodules.core.types import PlainDict
from datamodules.corpora.dialogues import Dialogue, Dialogues, with_free_question_marks
from datamodules.dialogue import DialogueDataModule, DialogueDataset, DialogueSplit
from zoo.tasks.outputs import DialogueOutput
from zoo.tasks.predictor import Predictor
from zoo.tasks.records import as_record

#: Words that explain an answer.
NUM_WORDS = 5


class ReadTurn(NamedTuple):
    """A turn that the model kept for a question."""

    #: in the dialogue, from 0.
    number: int
    text: str
    #: of the last hop.
    attention: float


class PointedWord(NamedTuple):
    """A word of a kept turn."""

    word: str
    #: of its turn in the dialogue, from 0.
    turn: int
    attention: float


class Answer(NamedTuple):
    """Answer to a question."""

    question: str
    answer: str
    #: of the answer, by the model's read-out.
    probability: float
    #: p_S of the answer, from the sentence-level read-out.
    p_sentence: float
    #: p_W of the answer, attention on its positions; None where the model has no memory of words.
    p_word: float | None
    #: strongest first: the kept ones or, where a model keeps none, all.
    turns: list[ReadTurn]
    #: strongest first; empty where the model has no memory of words.
    words: list[PointedWord]


class DialoguePredictor(Predictor[DialogueDataModule]):
    """Answers questions about dialogues."""

    example = 'model.predict(["it is for Kim ."], ["who is it for ?"])[0]'

    def predict(self, turns: Sequence[str], questions: str | Sequence[str]) -> list[Answer]:
        """Answer one question or several about a dialogue; an `InputError` if it has no turn."""
        questions = [questions] if isinstance(questions, str) else list(questions)
        if not turns:
            raise InputError("a dialogue without turns; give at least one")
        if not questions:
            return []
        dialogue = Dialogue(
            "1",
            [with_free_question_marks(turn) for turn in turns],
            [with_free_question_marks(question) for question in questions],
            [None] * len(questions),
            [f"question {number}" for number in range(1, len(questions) + 1)],
        )
        split = self.data.split_of(Dialogues.from_list([dialogue], "dialogue to predict"))
        return [answer for answer, _ in self.predict_split(split)]

    def predict_split(
        self, split: DialogueSplit, batch_size: int = 64, dialogues: int | None = None
    ) -> Iterator[tuple[Answer, str | None]]:
        """Answers to the questions of the first dialogues (None: of all), each with the right one if it is known."""
        start = 0
        dataset = self.data.dataset(split, self.model.batch_contents("predict"))
        for batch, output in self.outputs(dataset, batch_size, dialogues):
            readouts = {name: value.float().cpu() for name, value in output.choices().items()}
            for row in range(len(batch.row)):
                evidence = _Evidence(dataset, batch, output, row, start)
                answer = self._answer(evidence, {name: value[row] for name, value in readouts.items()})
                yield answer, split.dialogues.questions.label(int(batch.row[row]))
            start += batch_size

    def _answer(self, evidence: _Evidence, readouts: dict[str, Tensor]) -> Answer:
        """The answer to a question from the probabilities [V + X] of each read-out."""
        probabilities = readouts[self.model.readout]
        best = int(probabilities.argmax())
        words = self.data.words.vocabulary.words
        return Answer(
            question=evidence.question,
            answer=words[best] if best < len(words) else evidence.own_word(best - len(words)),
            probability=float(probabilities[best]),
            p_sentence=float(readouts["sentence"][best]),
            p_word=float(readouts["word"][best]) if "word" in readouts else None,
            turns=evidence.turns(),
            words=evidence.words(),
        )

    @override
    def records(self, source: str, batch_size: int = 64, shard: Shard = WHOLE) -> Iterator[PlainDict]:
        """The answer to each question, with its evidence.

        Args:
            source: a table of dialogues and questions as in training; answers may be missing.
        """
        table = self.data.read(source, answers=False)
        if shard.count > 1:
            table = table.select(shard.rows(len(table), batch_size))
        names = np.repeat(table.ids, np.diff(table.question_offsets)).tolist()
        answers = self.predict_split(self.data.split_of(table), batch_size)
        for name, (answer, _) in zip(names, answers, strict=True):
            yield {"dialogue": name, **as_record(answer)}


class _Evidence:
    """Turns and words behind the answer to one question."""

    def __init__(
        self, dataset: DialogueDataset, batch: DialogueBatch, output: DialogueOutput, row: int, first: int
    ) -> None:
        """Bind row `row` of a dataset's batch, whose first dialogue has the number `first`."""
        self.dataset, self.batch, self.output, self.row = dataset, batch, output, row
        self.question = dataset.split.dialogues.questions.texts[int(batch.row[row])]
        #: of the dialogue in the batch.
        self.dialogue = int(batch.dialogue[row])
        #: numbers of the turns that were read, in the table; and of the dialogue's first turn.
        self.numbers: list[int] = dataset.kept[first + self.dialogue].tolist()
        self.first = int(dataset.split.dialogues.turn_offsets[first + self.dialogue])

    def turns(self) -> list[ReadTurn]:
        """Turns with their attention, strongest first."""
        attention = self.output.attention[self.row].float().cpu().tolist()
        kept = self.batch.readable[self.row].nonzero().squeeze(1).tolist()
        if self.output.pointer is not None:
            kept = [number for number in self.output.pointer.kept[self.row].tolist() if number >= 0]
        texts = self.dataset.split.dialogues.turns.texts
        turns = [ReadTurn(self.numbers[n] - self.first, texts[self.numbers[n]], attention[n]) for n in kept]
        return sorted(turns, key=lambda turn: -turn.attention)

    def words(self) -> list[PointedWord]:
        """The words with most attention, strongest first."""
        pointer = self.output.pointer
        if pointer is None:
            return []
        weights = pointer.weight[self.row].float().cpu()
        strongest = weights.topk(min(NUM_WORDS, len(weights)))
        positions = pointer.position[self.row][strongest.indices].tolist()
        return [
            PointedWord(self.word_at(position), self.turn_of(position) - self.first, weight)
            for weight, position in zip(strongest.values.tolist(), positions, strict=True)
            if weight > 0
        ]

    def turn_of(self, position: int) -> int:
        """Number of the turn, in the table, of a word of the dialogue."""
        return self.numbers[int(self.batch.turn[self.dialogue, position])]

    def word_at(self, position: int) -> str:
        words = self.dataset.split.turn_tokens.words(self.turn_of(position))
        return words[int(self.batch.place[self.dialogue, position]) - 1]

    def own_word(self, number: int) -> str:
        """One of the words that are choices of this dialogue alone."""
        word = self.batch.own[self.dialogue, number]
        return self.word_at(int((self.batch.text[self.dialogue] == word).nonzero()[0, 0]))
