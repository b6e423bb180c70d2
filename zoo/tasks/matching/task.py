"""Base of the models that score pairs of texts: steps, loss, scores."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.matching import MatchingDataModule
from zoo.tasks.base import PredictionTable, Task
from zoo.tasks.matching.metrics import MatchingScores, as_lists, counted_pairs
from zoo.tasks.matching.predictor import MatchingPredictor
from zoo.tasks.outputs import MatchingOutput


def hinge_terms(score: Tensor, batch: MatchingBatch, margin: float = 1.0) -> Tensor:
    """Hinge of each list of two or more grades: the mean of max(0, margin - better + worse) over its candidates."""
    scores, grades, mask = as_lists(score, batch)
    better = (grades[:, :, None] > grades[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    missing = functional.relu(margin - scores[:, :, None] + scores[:, None, :]) * better
    combinations = better.sum(dim=(1, 2))
    counted = _rows(combinations > 0)
    return missing.sum(dim=(1, 2))[counted] / combinations[counted]


def softmax_terms(score: Tensor, batch: MatchingBatch) -> Tensor:
    """Cross entropy of each list with a positive: of its candidates' softmax, against its normalized grades."""
    scores, grades, mask = as_lists(score, batch)
    total = grades.sum(dim=1)
    counted = _rows(total > 0)
    log_probability = scores.masked_fill(~mask, -torch.inf)[counted].log_softmax(dim=1)
    # 0 times minus infinity, where there is no candidate, must be 0.
    log_probability = log_probability.masked_fill(~mask[counted], 0.0)
    return -(grades[counted] / total[counted, None] * log_probability).sum(dim=1)


def cross_entropy_terms(logits: Tensor, batch: MatchingBatch) -> Tensor:
    """Cross entropy of each pair; a single logit is that of a match, and grades above 0 are matches."""
    counted = _rows(counted_pairs(batch))
    target = batch.target[counted] > 0
    if logits.shape[1] == 1:
        is_match = target.to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits[counted, 0], is_match, reduction="none")
    return functional.cross_entropy(logits[counted], target.long(), reduction="none")


def _rows(mask: Tensor) -> Tensor:
    """Row numbers of a mask: indexing by a mask would synchronize the GPU each time, also for the gradient."""
    return mask.nonzero().squeeze(1)


Loss: TypeAlias = Literal["hinge", "softmax", "cross_entropy"]


class MatchingTask(Task[MatchingDataModule]):
    """Base of the models that score pairs.

    Args:
        loss: `hinge`: a better candidate's score should be 1 above a worse one's; `softmax`: the softmax
            over a question's candidates should equal its grades; `cross_entropy`: each pair by itself. None = that
            of the model's paper, or cross entropy for pairs to classify, which have no other.
    """

    task = "matching"
    pipeline_tag = "text-ranking"
    spec_type = MatchingSpec
    predictor_type = MatchingPredictor
    shown = ("map", "accuracy")
    spec: MatchingSpec

    #: default loss for ranking; pairs to classify have cross entropy.
    ranking_loss: ClassVar[Loss] = "hinge"

    def __init__(self, loss: Loss | None = None, **shared: Any) -> None:
        super().__init__(**shared)
        self.chosen_loss = loss

    def loss_for(self, goal: str) -> Loss:
        """The loss for data of this goal."""
        return self.chosen_loss or ("cross_entropy" if goal == "classification" else self.ranking_loss)

    @property
    def loss(self) -> Loss:
        """The loss, once the data is known."""
        return self.loss_for(self.spec.goal)

    def has_bias(self, spec: MatchingSpec) -> bool:
        """Return whether a constant in all scores changes the loss: losses that compare candidates ignore it."""
        return self.loss_for(spec.goal) == "cross_entropy"

    @override
    def check_data(self, data: MatchingDataModule) -> None:
        super().check_data(data)
        goal = data.options.chosen_goal
        loss = self.loss_for(goal)
        if loss == "cross_entropy":
            return
        if goal == "classification":
            raise InputError(
                f"model.loss={loss} compares candidates, and pairs to classify have none: use model.loss=cross_entropy"
            )
        if data.options.chosen_batches == "pointwise":
            raise InputError(
                f"model.loss={loss} compares a question's candidates, and data.batches=pointwise gives it one"
                " pair at a time: use model.loss=cross_entropy"
            )

    @override
    def new_scores(self) -> MatchingScores:
        return MatchingScores(self.spec.goal)

    @override
    def count(self, scores: MatchingScores, batch: MatchingBatch) -> None:
        output = self(batch)
        scores.update(output.score, self.loss_terms(output, batch), batch)

    def loss_terms(self, output: MatchingOutput, batch: MatchingBatch) -> Tensor:
        """Terms whose mean is the loss of a batch: one per list, or with cross entropy one per pair."""
        if self.loss == "hinge":
            return hinge_terms(output.score, batch)
        if self.loss == "softmax":
            return softmax_terms(output.score, batch)
        return cross_entropy_terms(output.logits, batch)

    @override
    def training_step(self, batch: MatchingBatch, batch_idx: int) -> Tensor:
        output = self(batch)
        terms = self.loss_terms(output, batch)
        # Without a term there is nothing to learn, but every process must run the backward pass.
        loss = terms.mean() if len(terms) else 0.0 * output.logits.sum()
        self.log_loss(loss, max(1, len(terms)))
        return loss

    def probability(self, score: Tensor) -> Tensor | None:
        """Probabilities [P] of a match from scores [P]; None where only the order was learned."""
        return score.sigmoid() if self.loss == "cross_entropy" else None

    @override
    def shown_predictions(self, data: MatchingDataModule, rows: int) -> PredictionTable:
        split, lines = data.split("validation"), list[list[object]]()
        for row, prediction in MatchingPredictor(self, data).predict_split(split, rows).items():
            words = "\n".join(f"{value:+.3f} {first} - {second}" for first, second, value in prediction.words)
            grade = float(split.pairs.target[row])
            lines.append([prediction.first, prediction.second, grade, prediction.score, words])
        return ["first", "second", "label", "score", "words"], lines
