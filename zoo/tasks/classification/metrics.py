"""Metrics of classifiers, from counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import ClassificationBatch
from zoo.tasks.classification.calibration import Calibration
from zoo.tasks.classification.multilabel import probabilities_of, row_scores
from zoo.tasks.metrics import PARTS, RowMeans, joined
from zoo.tasks.outputs import ClassificationOutput


class ClassificationScores(RowMeans):
    """Accuracy, F1, scores of each class, and loss; a row with an unknown label is an error, and has no loss."""

    correct: Tensor
    true: Tensor
    predicted: Tensor
    #: of the answers, float32 [rows], in batches.
    probability: list[Tensor]
    is_right: list[Tensor]
    #: numbers of the rows with wrong answers, int64, in batches.
    wrong: list[Tensor]
    #: of an ensemble that measures its table: numbers of rows, and their scores by each row of it [rows, names].
    measured: list[Tensor]
    scores: list[Tensor]

    def __init__(self, labels: Sequence[str], names: Sequence[str] = ("accuracy",), parts: int = 1) -> None:
        super().__init__(names, parts)
        self.labels = list(labels)
        n = len(self.labels)
        # Rows by class: a confusion matrix of many classes is large. The last of the true classes are unknown labels.
        self.add_counts(correct=(n,), true=(n + 1,), predicted=(n,))
        for name in ("probability", "is_right", "wrong", "measured", "scores"):
            self.add_state(name, [], dist_reduce_fx="cat")
        #: of the rows without duplicates elsewhere, over all processes; after `compute`, None without such rows.
        self.calibration: Calibration | None = None
        #: numbers of the rows with wrong answers, over all processes; after `compute`.
        self.wrong_rows: list[int] = []
        #: row of the ensemble's table -> scores of the texts with the numbers `measured_rows` (see `row_scores`), over
        #: all processes; after `compute`.
        self.table: dict[str, NDArray[np.float64]] = {}
        self.measured_rows = np.zeros(0, np.int64)

    def update(self, output: ClassificationOutput, batch: ClassificationBatch) -> None:
        """Count a batch and a network's output for it; rows of weight 0 only pad."""
        n, logits, target, is_duplicate = len(self.labels), output.logits, batch.target, batch.is_duplicate
        counted = (batch.weight > 0) & (target >= 0)
        prediction = logits.argmax(dim=1)
        self.add_rows((prediction == target).unsqueeze(1), counted, is_duplicate)
        independent = counted if is_duplicate is None else counted & ~is_duplicate
        self.probability.append(logits[independent].float().softmax(dim=1).amax(dim=1))
        self.is_right.append((prediction == target)[independent].float())
        self.wrong.append(batch.row[counted & (prediction != target)])
        self._measure_table(output, batch, counted)
        true, predicted = target[counted], prediction[counted]
        self.true += torch.bincount(true, minlength=n + 1)
        self.predicted += torch.bincount(predicted, minlength=n)
        self.correct += torch.bincount(true[true == predicted], minlength=n)
        known = counted & (target < n)
        self.add_loss(functional.cross_entropy(logits[known].float(), target[known], reduction="none"))

    def _measure_table(
        self, output: ClassificationOutput, batch: ClassificationBatch, counted: Tensor
    ) -> None:
        if output.table:
            self.table = dict.fromkeys(output.table, np.zeros(0))
            scores = [row_scores(each, batch.target, batch.unknown_labels) for each in output.table.values()]
            self.measured.append(batch.row[counted])
            self.scores.append(torch.stack(scores, dim=1)[counted])

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; those of classes are [C], NaN for a class without rows and predictions."""
        n = len(self.labels)
        self.calibration = self._calibration()
        self.wrong_rows = sorted(joined(self.wrong).tolist())
        self.measured_rows = joined(self.measured).numpy()
        self.table = dict(zip(self.table, joined(self.scores).numpy().T, strict=True))
        correct, true, predicted = self.correct.double(), self.true.double(), self.predicted.double()
        f1 = 2 * correct / (true[:n] + predicted).clamp(min=1)
        is_present = (true[:n] + predicted) > 0
        # Unknown labels are one more class in the mean, with an F1 of 0.
        classes = (is_present.sum() + (true[n] > 0)).clamp(min=1)
        means = self.means()
        scores = {
            "loss": self.mean_loss,
            **means,
            # With one label per row, micro-F1 equals the accuracy; papers report either.
            "micro_f1": means["accuracy"],
            "macro_f1": f1[is_present].sum() / classes,
            "rows": self.rows.double(),
            "unknown_labels": true[n],
        }
        by_class = {
            "precision": correct / predicted.clamp(min=1),
            "recall": correct / true[:n].clamp(min=1),
            "f1": f1,
            "support": true[:n],
        }
        absent = torch.full_like(f1, torch.nan)
        return scores | {name: torch.where(is_present, values, absent) for name, values in by_class.items()}

    def _calibration(self) -> Calibration | None:
        probability, is_right = joined(self.probability).double(), joined(self.is_right)
        is_finite = len(probability) > 0 and bool(probability.isfinite().all())
        return Calibration.of(probability.numpy(), is_right.numpy() > 0) if is_finite else None


class MultilabelScores(ClassificationScores):
    """Scores of sets of labels: of the labels, of the sets, and of the order of all labels of a text.

    `accuracy` is the share of sets that are right as a whole, `samples_f1` the mean of `row_scores`. A label that the
    model does not know is missing in every answer. Labels that are given are calibrated.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__(labels, ("accuracy", "samples_f1", "empty_answers", "right_empty_answers"), PARTS)
        # Of all counted rows: probabilities of labels [rows, C], and their sets.
        self.add_state("scored", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    scored: list[Tensor]
    target: list[Tensor]

    @override
    def update(self, output: ClassificationOutput, batch: ClassificationBatch) -> None:
        counted, target, chosen, missing = batch.weight > 0, batch.target, output.chosen, batch.unknown_labels
        assert chosen is not None
        assert missing is not None
        logits = output.logits.float()
        probabilities = probabilities_of(logits)
        is_right = (chosen == target).all(dim=1) & (missing == 0)
        is_empty = ~chosen.any(dim=1)
        values = is_right, row_scores(chosen, target, missing), is_empty, is_empty & is_right
        self.add_rows(torch.stack([value.double() for value in values], dim=1), counted, batch.is_duplicate)
        given = (chosen > 0) & counted[:, None]
        self.probability.append(probabilities[given])
        self.is_right.append(target[given].float())
        self.scored.append(probabilities[counted])
        self.target.append(target[counted])
        self.wrong.append(batch.row[counted & ~is_right])
        self._measure_table(output, batch, counted)
        true = target[counted]
        self.true += torch.cat([true.sum(dim=0), missing[counted].sum()[None]])
        self.predicted += chosen[counted].sum(dim=0)
        self.correct += (true * chosen[counted]).sum(dim=0)
        self.add_loss(functional.cross_entropy(logits[counted], true, reduction="none").flatten())

    @override
    def compute(self) -> dict[str, Tensor]:
        """As in `ClassificationScores`, and means over labels and texts of what the order of labels is worth."""
        from torchmetrics.functional import classification  # imports transformers, too

        scores, n = super().compute(), len(self.labels)
        probability, target = (joined(each).reshape(-1, n) for each in (self.scored, self.target))
        precision = ranking = torch.tensor(torch.nan, dtype=torch.double)
        if len(target):
            has_rows, target = target.any(dim=0), target.long()
            pairs = zip(probability.T[has_rows], target.T[has_rows], strict=True)
            of_labels = [classification.binary_average_precision(*pair) for pair in pairs]
            precision = torch.tensor(of_labels, dtype=torch.double).mean()
            ranking = classification.multilabel_ranking_average_precision(probability, target, n).double()
        answers = self.true.sum() + self.predicted.sum()
        return scores | {
            "micro_f1": 2 * self.correct.sum().double() / answers.clamp(min=1),
            "mean_average_precision": precision,
            "label_ranking_average_precision": ranking,
        }


class AttentionScores(ClassificationScores):
    """The same, and the mean attention on the memory of each rank in each hop."""

    attention: Tensor
    texts: Tensor

    def __init__(self, labels: Sequence[str], hops: int, num_memories: int) -> None:
        super().__init__(labels)
        self.add_state("attention", torch.zeros(hops, num_memories, dtype=torch.double), dist_reduce_fx="sum")
        self.add_counts(texts=(num_memories,))  # with a memory of each rank

    @override
    def update(self, output: ClassificationOutput, batch: ClassificationBatch) -> None:
        super().update(output, batch)
        assert output.hop_weight is not None
        # A small memory has fewer rows than `num_memories`.
        counted, k = batch.weight > 0, batch.memory_mask.shape[1]
        self.attention[:, :k] += output.hop_weight[counted].double().sum(dim=0)
        self.texts[:k] += batch.memory_mask[counted].sum(dim=0)

    @override
    def compute(self) -> dict[str, Tensor]:
        """As in `ClassificationScores`, and `hop<h>_attention@<rank>` from 1, over texts with a memory of that rank."""
        mean = self.attention / self.texts.clamp(min=1)
        by_rank = {
            f"hop{hop}_attention@{rank}": value
            for hop, values in enumerate(mean, start=1)
            for rank, value in enumerate(values, start=1)
        }
        return super().compute() | by_rank
