"""Predictions of a trained dialogue model: a dialogue and questions in, words with their evidence out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from zoo.tasks.outputs import DialogueOutput, Pointer
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


class DialogueAnswer(NamedTuple):
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

    def predict(self, turns: Sequence[str], questions: str | Sequence[str]) -> list[DialogueAnswer]:
        """Answer one question or several about a dialogue; an `InputError` if it has no turn."""
        questions = [questions] if isinstance(questions, str) else list(questions)
        if not turns:
            raise InputError("a dialogue without turns; give at least one")
        if not questions:
            return []
        dialogue = Dialogue("1", list(map(with_free_question_marks, turns)))
        for number, question in enumerate(questions, 1):
            dialogue.questions.append((with_free_question_marks(question), None, f"question {number}"))
        split = self.data.split_of(Dialogues.from_list([dialogue], "dialogue to predict"))
        return [answer for answer, _ in self.predict_split(split)]

    def predict_split(
        self, split: DialogueSplit, batch_size: int = 64, dialogues: int | None = None
    ) -> Iterator[tuple[DialogueAnswer, str | None]]:
        """Answers to the questions of the first dialogues (None: of all), each with the right one if it is known."""
        dataset = self.data.dataset(split, self.model.batch_contents("predict"))
        for batch, output in self.outputs(dataset, batch_size, dialogues):
            readouts = {name: value.float().cpu() for name, value in output.choices().items()}
            for row, question in enumerate(batch.row.tolist()):
                answer = self._answer(dataset, batch, output, readouts, row)
                yield answer, split.dialogues.questions.label(question)

    def _answer(
        self,
        dataset: DialogueDataset,
        batch: DialogueBatch,
        output: DialogueOutput,
        readouts: Mapping[str, Tensor],
        row: int,
    ) -> DialogueAnswer:
        """Answer the question of a row of a batch by probabilities [P, V + X]."""
        dialogues, dialogue, question = dataset.split.dialogues, int(batch.dialogue[row]), int(batch.row[row])
        number = int(np.searchsorted(dialogues.question_offsets, question, side="right")) - 1
        # Numbers, in the table, of the turns that were read, and of the dialogue's first turn.
        read, first = dataset.kept[number].tolist(), int(dialogues.turn_offsets[number])

        def word_at(position: int, attention: float = 0.0) -> PointedWord:
            turn = read[int(batch.turn[dialogue, position])]
            words = dataset.split.turn_tokens.words(turn)
            return PointedWord(words[int(batch.place[dialogue, position]) - 1], turn - first, attention)

        own = {name: value[row] for name, value in readouts.items()}
        best, words = int(own[self.model.readout].argmax()), self.data.words.vocabulary.words
        if best < len(words):
            answer = words[best]
        else:  # a choice of this dialogue alone
            is_answer = batch.text[dialogue] == batch.own[dialogue, best - len(words)]
            answer = word_at(int(is_answer.nonzero()[0, 0])).word
        kept = batch.readable[row].nonzero().squeeze(1).tolist()
        if output.pointer is not None:
            kept = [turn for turn in output.pointer.kept[row].tolist() if turn >= 0]
        attention, texts = output.attention[row].float().cpu().tolist(), dialogues.turns.texts
        turns = [ReadTurn(read[turn] - first, texts[read[turn]], attention[turn]) for turn in kept]
        return DialogueAnswer(
            question=dialogues.questions.texts[question],
            answer=answer,
            probability=float(own[self.model.readout][best]),
            p_sentence=float(own["sentence"][best]),
            p_word=float(own["word"][best]) if "word" in own else None,
            turns=sorted(turns, key=lambda turn: -turn.attention),
            words=[word_at(*each) for each in _strongest(output.pointer, row)],
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


def _strongest(pointer: Pointer | None, row: int) -> list[tuple[int, float]]:
    """The positions of the words with most attention, and this, strongest first; empty without a memory of words."""
    if pointer is None:
        return []
    weights = pointer.weight[row].float().cpu()
    strongest = weights.topk(min(NUM_WORDS, len(weights)))
    positions = pointer.position[row][strongest.indices].tolist()
    found = zip(positions, strongest.values.tolist(), strict=True)
    return [(position, weight) for position, weight in found if weight > 0]
