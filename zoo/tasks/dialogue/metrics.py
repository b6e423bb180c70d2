"""Metrics of answers to questions about dialogues, from counts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from datamodules.dialogue.dataset import NO_ANSWER
from zoo.tasks.metrics import CountedScores

#: Probabilities and losses are summed as whole numbers of this size.
_UNIT = 2.0**-32


class DialogueScores(CountedScores):
    """Errors, accuracy, loss, probability of the right answer, by read-out; answers that are no choice are errors."""

    errors: Tensor
    probability: Tensor
    loss: Tensor
    questions: Tensor
    unanswerable: Tensor

    def __init__(self, readouts: tuple[str, ...], readout: str) -> None:
        super().__init__()
        self.readouts, self.readout = readouts, readout
        n = len(readouts)
        self.add_counts(errors=(n,), probability=(n,), loss=(), questions=(), unanswerable=())

    def update(self, choices: Mapping[str, Tensor], answer: Tensor, weight: Tensor, loss: Tensor) -> None:
        """Count questions; `choices`: read-out -> [P, choices]; an answer of -1 is no choice, one of -100 unknown."""
        counted = (weight > 0) & (answer != NO_ANSWER)
        known = counted & (answer >= 0)
        for i, name in enumerate(self.readouts):
            probability = choices[name][known].gather(1, answer[known].unsqueeze(1))
            self.errors[i] += (choices[name].argmax(dim=1) != answer)[counted].sum()
            self.probability[i] += _whole(probability)
        self.loss += _whole(loss[known])
        self.questions += counted.sum()
        self.unanswerable += (counted & ~known).sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; names of the model's own read-out have no suffix."""
        questions = self.questions.double().clamp(min=1)
        answerable = (self.questions - self.unanswerable).double().clamp(min=1)
        scores = {"loss": self.loss.double() * _UNIT / answerable}
        for i, name in enumerate(self.readouts):
            for suffix in (f"_{name}", *([""] if name == self.readout else [])):
                scores[f"errors{suffix}"] = self.errors[i]
                scores[f"accuracy{suffix}"] = 1 - self.errors[i].double() / questions
                scores[f"probability{suffix}"] = self.probability[i].double() * _UNIT / questions
        scores |= {"questions": self.questions, "unanswerable": self.unanswerable}
        return {name: value.double() for name, value in scores.items()}


def _whole(values: Tensor) -> Tensor:
    return (values.double() / _UNIT).round().long().sum()
