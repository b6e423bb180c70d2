"""What every text classifier needs around its network: steps, loss, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.errors import InputError
from zoo.tasks.base import Task


class ClassificationOutput(Protocol):
    """What a classification network returns."""

    @property
    def logits(self) -> Tensor:
        """float32 [B, C]."""

    @property
    def memory_weight(self) -> Tensor:
        """float32 [B, K]: what each memory counted for; 0 where there is none."""


class ClassificationScores(Metric):
    """Accuracy, micro- and macro-F1, per-class scores and loss from counts, exact on any number of processes.

    A label that the model does not know is a class that it never predicts: such a row is an error, and has
    no loss.
    """

    full_state_update = False
    confusion: Tensor
    loss_sum: Tensor
    loss_rows: Tensor

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = list(labels)
        n = len(self.labels)
        # Rows are true classes (the last: unknown labels), columns predicted ones.
        self.add_state("confusion", torch.zeros(n + 1, n, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("loss_sum", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")
        self.add_state("loss_rows", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor, weight: Tensor) -> None:
        """Count a batch.

        Args:
            logits: [B, C].
            target: [B] classes; C = unknown label.
            weight: [B], 0 for rows that only pad a batch.
        """
        n = len(self.labels)
        counted = (weight > 0) & (target >= 0)
        cells = target[counted] * n + logits.argmax(dim=1)[counted]
        self.confusion += torch.bincount(cells, minlength=(n + 1) * n).view(n + 1, n)
        known = counted & (target < n)
        losses = functional.cross_entropy(logits[known].float(), target[known], reduction="none")
        self.loss_sum += losses.double().sum()
        self.loss_rows += known.sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value. A class without rows and without predictions has no F1 and is left out."""
        n = len(self.labels)
        correct = self.confusion[:n].diagonal().double()
        rows = self.confusion.sum(dim=1).double()  # [C+1]
        predicted = self.confusion.sum(dim=0).double()  # [C]
        f1 = 2 * correct / (rows[:n] + predicted).clamp(min=1)
        present = (rows[:n] + predicted) > 0
        # Unknown labels are one more class, of F1 0, in the mean.
        classes = (present.sum() + (rows[n] > 0)).clamp(min=1)
        accuracy = correct.sum() / rows.sum().clamp(min=1)
        scores = {
            "loss": self.loss_sum / self.loss_rows.clamp(min=1),
            "accuracy": accuracy,
            # With one label a row, micro-F1 is the accuracy; both names are printed, as papers do.
            "micro_f1": accuracy,
            "macro_f1": f1[present].sum() / classes,
            "rows": rows.sum(),
            "unknown_labels": rows[n],
        }
        for i, label in enumerate(self.labels):
            if present[i]:
                scores[f"f1/{label}"] = f1[i]
                scores[f"precision/{label}"] = correct[i] / predicted[i].clamp(min=1)
                scores[f"recall/{label}"] = correct[i] / rows[i].clamp(min=1)
        return {name: value.double() for name, value in scores.items()}


class RetrievedMemory(NamedTuple):
    """One piece of evidence for a prediction."""

    text: str
    #: None where the memory has no label.
    label: str | None
    #: the retriever's score of the memory for the text.
    retrieval_score: float
    #: what the memory counted for in the network; see the model's output.
    weight: float


class Prediction(NamedTuple):
    """A text's predicted label with its evidence."""

    text: str
    label: str
    #: of `label`.
    probability: float
    #: label -> probability.
    probabilities: dict[str, float]
    #: in retrieval order.
    memories: list[RetrievedMemory]


class ClassificationTask(Task):
    """Base of the classifiers."""

    task = "classification"
    spec_type = ClassificationSpec
    spec: ClassificationSpec | None

    def make_scores(self) -> None:
        """Scores of validation and test."""
        assert self.spec is not None
        self.validation_scores = ClassificationScores(self.spec.labels)
        self.test_scores = ClassificationScores(self.spec.labels)

    # --- steps ---

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Run the network on a batch."""
        if self.network is None:
            raise InputError("the model has no weights yet: train it, or load a checkpoint with zoo.load")
        output: ClassificationOutput = self.network(batch)
        return output

    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        """Cross entropy of a batch."""
        loss = functional.cross_entropy(self(batch).logits, batch.target)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.target))
        return loss

    def validation_step(self, batch: ClassificationBatch, batch_idx: int) -> None:
        """Count a batch."""
        self.validation_scores.update(self(batch).logits, batch.target, batch.weight)

    def on_validation_epoch_end(self) -> None:
        """Log the scores of the validation rows."""
        self._log_scores(self.validation_scores, "val")

    def test_step(self, batch: ClassificationBatch, batch_idx: int) -> None:
        """Count a batch."""
        self.test_scores.update(self(batch).logits, batch.target, batch.weight)

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test rows."""
        self._log_scores(self.test_scores, "test")

    def _log_scores(self, scores: ClassificationScores, stage: str) -> None:
        values = scores.compute()
        scores.reset()
        shown = "accuracy" if stage == "val" else ""
        for name, value in values.items():
            # compute() has already summed over processes: nothing is left to reduce.
            self.log(
                f"{stage}/{name}", value.to(self._log_dtype()), prog_bar=name == shown, rank_zero_only=False
            )

    def predict_step(self, batch: ClassificationBatch, batch_idx: int) -> dict[str, Tensor]:
        """Probabilities [B, C], memory weights [B, K] and row numbers [B] of a batch, on the CPU."""
        output = self(batch)
        return {
            "probability": output.logits.softmax(dim=1).cpu(),
            "memory_weight": output.memory_weight.cpu(),
            "index": batch.index.cpu(),
            "weight": batch.weight.cpu(),
        }
