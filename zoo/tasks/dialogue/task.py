"""Base of the models that answer questions about dialogues: steps, loss, and scores from counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from callbacks.chart import Cell, Chart
from datamodules.batch import DialogueBatch, DialogueSpec
from datamodules.core.types import NotNegative
from datamodules.corpora.dialogues import Dialogues
from datamodules.dialogue import NO_ANSWER, DialogueDataModule
from zoo.tasks.base import PredictionTable, Task
from zoo.tasks.dialogue.predictor import DialogueAnswer, DialoguePredictor
from zoo.tasks.metrics import RowMeans
from zoo.tasks.outputs import DialogueOutput

Readout: TypeAlias = Literal["sentence", "word", "joint"]

#: The smallest probability whose logarithm is taken.
_LEAST = 1e-30
#: Questions in a chart of single questions.
MOST_QUESTIONS = 30


class DialogueScores(RowMeans):
    """Errors, accuracy, loss, probability of the right answer, by read-out; answers that are no choice are errors."""

    unanswerable: Tensor

    def __init__(self, readouts: tuple[str, ...], readout: str) -> None:
        names = [f"{kind}_{name}" for name in readouts for kind in ("errors", "probability")]
        super().__init__([*names, "loss"], parts=2**32)
        self.readouts, self.readout = readouts, readout
        self.add_counts(unanswerable=())

    def update(self, choices: Mapping[str, Tensor], answer: Tensor, weight: Tensor, loss: Tensor) -> None:
        """Count questions; `choices`: read-out -> [P, choices]; an answer of -1 is no choice, one of -100 unknown."""
        counted = (weight > 0) & (answer != NO_ANSWER)
        known = counted & (answer >= 0)
        right = answer.clamp(min=0).unsqueeze(1)
        values = []
        for choice in (choices[name] for name in self.readouts):
            values += [choice.argmax(dim=1) != answer, choice.gather(1, right).squeeze(1) * known]
        rows = [value.double() for value in (*values, loss * known)]
        self.add_rows(torch.stack(rows, dim=1), counted, None)
        self.unanswerable += (counted & ~known).sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; names of the model's own read-out have no suffix."""
        sums = dict(zip(self.names, self.sums.double() / self.parts, strict=True))
        questions, unanswerable = self.rows.double(), self.unanswerable.double()
        scores = {"loss": sums["loss"] / (questions - unanswerable).clamp(min=1)}
        for name in self.readouts:
            for suffix in (f"_{name}", *([""] if name == self.readout else [])):
                scores[f"errors{suffix}"] = sums[f"errors_{name}"]
                scores[f"accuracy{suffix}"] = 1 - sums[f"errors_{name}"] / questions.clamp(min=1)
                scores[f"probability{suffix}"] = sums[f"probability_{name}"] / questions.clamp(min=1)
        return scores | {"questions": questions, "unanswerable": unanswerable}


class DialogueTask(Task[DialogueDataModule]):
    """Base of the models that answer a question with one word.

    Args:
        loss: `joint`: cross entropy of the mean of the read-outs, as in the paper; `each`: the sum of theirs.
        sentence_loss: weight of another term, minus the logarithm of the last hop's attention on the turns with the
            answer, which otherwise learns slowly. 0 = the paper's loss.
    """

    task = "dialogue"
    pipeline_tag = "question-answering"
    spec_type = DialogueSpec
    predictor_type = DialoguePredictor
    shown = ("accuracy", "errors")
    spec: DialogueSpec

    #: the read-outs that the network has.
    readouts: ClassVar[tuple[Readout, ...]] = ("sentence",)

    def __init__(
        self, loss: Literal["joint", "each"] = "each", sentence_loss: NotNegative = 1.0, **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.loss, self.sentence_loss = loss, sentence_loss
        #: the read-out that answers, of those of `DialogueOutput.choices`.
        self.readout: str = self.readouts[0]

    @override
    def idle_options(self, data: DialogueDataModule) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        if self.loss != "each" and len(self.readouts) == 1:
            yield "model.loss", f"a {type(self).__name__} has one read-out"

    @override
    def new_scores(self) -> DialogueScores:
        return DialogueScores(self.readouts, self.readout)

    @override
    def count(self, scores: DialogueScores, batch: DialogueBatch) -> None:
        output = self(batch)
        scores.update(output.choices(), batch.answer, batch.weight, self.loss_terms(output, batch))

    def loss_terms(self, output: DialogueOutput, batch: DialogueBatch) -> Tensor:
        """Terms whose mean is the loss: one per question [P]; 0 where no choice is right."""
        known = batch.answer >= 0
        answer = batch.answer.clamp(min=0).unsqueeze(1)  # [P, 1]
        sentence = output.log_sentence.gather(1, answer).squeeze(1)
        if output.pointer is None:
            terms = -sentence
        else:
            word = output.pointer.choice.gather(1, answer).squeeze(1).clamp(min=_LEAST).log()
            joint = torch.logaddexp(sentence, word) - math.log(2)
            terms = -joint if self.loss == "joint" else -sentence - word
        if self.sentence_loss:
            holds = turns_with_answer(batch)  # [P, N]
            attention = (output.attention * holds).sum(dim=1).clamp(min=_LEAST).log()
            terms = terms - self.sentence_loss * attention * holds.any(dim=1)
        return terms * known

    @override
    def training_step(self, batch: DialogueBatch, batch_idx: int) -> Tensor:
        terms = self.loss_terms(self(batch), batch)
        known = (batch.answer >= 0).sum().clamp(min=1)
        loss = terms.sum() / known
        self.log_loss(loss, known)
        return loss

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        # Nearly one-hot softmaxes have gradients of 1e-40, which are slow on a CPU.
        torch.set_flush_denormal(True)

    @override
    def on_train_end(self) -> None:
        torch.set_flush_denormal(False)

    @override
    def charts(self, data: DialogueDataModule, rows: int) -> Iterator[Chart]:
        split = data.split("validation")
        answers = DialoguePredictor(self, data).predict_split(split)
        yield attention_chart(list(islice(answers, rows)), split.dialogues)

    @override
    def shown_predictions(self, data: DialogueDataModule, rows: int) -> PredictionTable:
        split, lines = data.split("validation"), list[list[object]]()
        for answer, right in DialoguePredictor(self, data).predict_split(split, dialogues=rows):
            turns = "\n".join(f"{turn.attention:.3f} {turn.text}" for turn in answer.turns)
            words = "\n".join(f"{word.attention:.3f} {word.word}" for word in answer.words)
            lines.append([answer.question, right, answer.answer, answer.probability, turns, words])
        return ["question", "answer", "predicted", "probability", "turns", "words"], lines


def turns_with_answer(batch: DialogueBatch) -> Tensor:
    """bool [P, N]: the turns that hold a question's answer, among those that are read for it."""
    choice, text = batch.choice[batch.dialogue], batch.text[batch.dialogue]  # [P, L]
    is_answer = (choice == batch.answer.unsqueeze(1)) & (text != 0)
    counts = torch.zeros(batch.readable.shape, device=is_answer.device)
    counts.scatter_add_(1, batch.turn[batch.dialogue], is_answer.to(counts.dtype))
    return (counts > 0) & batch.readable


def attention_chart(answers: Sequence[tuple[DialogueAnswer, str | None]], dialogues: Dialogues) -> Chart:
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
    title, mark = f"Attention on the turns that are kept, for {len(rows)} questions", "holds the answer"
    columns = ["dialogue: question", *map(str, range(1, turns + 1))]
    return Chart(
        "attention", title, columns, rows, "map", value="attention", across="turn", mark=mark, marked=holding
    )
