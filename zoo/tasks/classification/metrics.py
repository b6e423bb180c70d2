"""How well texts are classified, from counts: exact on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics import Metric


class ClassificationScores(Metric):
    """Accuracy, micro- and macro-F1, per-class scores and loss from counts, exact on any number of processes.

    A label that the model does not know is a class that it never predicts: such a row is an error, and has
    no loss.
    """

    full_state_update = False
    correct: Tensor
    rows: Tensor
    predicted: Tensor
    loss_sum: Tensor
    loss_rows: Tensor
    others: Tensor

    def __init__(self, labels: Sequence[str]) -> None:
        super().__init__()
        self.labels = list(labels)
        n = len(self.labels)
        # A table of which class was taken for which would be larger than the network where classes are many.
        self.add_state("correct", torch.zeros(n, dtype=torch.long), dist_reduce_fx="sum")
        # The last: unknown labels.
        self.add_state("rows", torch.zeros(n + 1, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("predicted", torch.zeros(n, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("loss_sum", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")
        self.add_state("loss_rows", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        # Rows without a copy elsewhere, and how many of them are right.
        self.add_state("others", torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self, logits: Tensor, target: Tensor, weight: Tensor, is_duplicate: Tensor | None = None
    ) -> None:
        """Count a batch.

        Args:
            logits: [B, C].
            target: [B] classes; C = unknown label.
            weight: [B], 0 for rows that only pad a batch.
            is_duplicate: bool [B], rows that the accuracy without copies leaves out; None = none.
        """
        n = len(self.labels)
        counted = (weight > 0) & (target >= 0)
        found = logits.argmax(dim=1)
        true, predicted = target[counted], found[counted]
        self.rows += torch.bincount(true, minlength=n + 1)
        self.predicted += torch.bincount(predicted, minlength=n)
        self.correct += torch.bincount(true[true == predicted], minlength=n)
        other = counted if is_duplicate is None else counted & ~is_duplicate
        self.others += torch.stack([other.sum(), (other & (found == target)).sum()])
        known = counted & (target < n)
        losses = functional.cross_entropy(logits[known].float(), target[known], reduction="none")
        self.loss_sum += losses.double().sum()
        self.loss_rows += known.sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value, float64; F1, precision and recall of the classes [C], NaN where there is none.

        A class without rows and without predictions has none and is left out of the mean.

        `accuracy_without_duplicates` is there if some of the rows are copies, and not all.
        """
        n = len(self.labels)
        correct, rows, predicted = self.correct.double(), self.rows.double(), self.predicted.double()
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
        of_classes = {
            "f1": f1,
            "precision": correct / predicted.clamp(min=1),
            "recall": correct / rows[:n].clamp(min=1),
        }
        absent = torch.full_like(f1, torch.nan)
        scores |= {name: torch.where(present, values, absent) for name, values in of_classes.items()}
        if 0 < self.others[0] < rows.sum():
            scores["accuracy_without_duplicates"] = self.others[1] / self.others[0]
        return {name: value.double() for name, value in scores.items()}


class AttentionScores(ClassificationScores):
    """The same, and the mean attention that texts pay to the memory of each rank in each hop."""

    attention: Tensor
    texts: Tensor

    def __init__(self, labels: Sequence[str], hops: int, num_memories: int) -> None:
        super().__init__(labels)
        self.add_state("attention", torch.zeros(hops, num_memories, dtype=torch.double), dist_reduce_fx="sum")
        # Texts with a memory of each rank.
        self.add_state("texts", torch.zeros(num_memories, dtype=torch.long), dist_reduce_fx="sum")

    def update_attention(self, hop_weight: Tensor, mask: Tensor, weight: Tensor) -> None:
        """Count a batch, after `update`.

        Args:
            hop_weight: [B, H, K] attention.
            mask: bool [B, K], True where there is a memory; they stand in order of rank.
            weight: [B], 0 for rows that only pad a batch.
        """
        counted = weight > 0
        self.attention += hop_weight[counted].double().sum(dim=0)
        self.texts += mask[counted].sum(dim=0)

    def compute(self) -> dict[str, Tensor]:
        """As in `ClassificationScores`, and `hop<h>_attention@<rank>` from 1, of texts with a memory of that rank."""
        mean = self.attention / self.texts.clamp(min=1)
        of_ranks = {
            f"hop{hop}_attention@{rank}": value
            for hop, values in enumerate(mean, start=1)
            for rank, value in enumerate(values, start=1)
        }
        return super().compute() | of_ranks
