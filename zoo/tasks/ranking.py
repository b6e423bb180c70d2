"""What every model that scores pairs of texts needs around its network: losses, steps."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.nn import functional

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.errors import InputError
from zoo.tasks.base import Task
from zoo.tasks.ranking_scores import MatchingScores, PairScores, RankingScores

Loss = Literal["hinge", "softmax", "cross_entropy"]


class MatchingOutput(NamedTuple):
    """What a matching network returns."""

    #: float32 [P, spec.num_outputs]: the score of a pair to rank; of a pair to classify, logits of "does not
    #: match" and "matches".
    logits: Tensor
    #: float32 [P, T, S]: how strongly the words of a pair's texts interact, 0 where there is no word; None
    #: where a model compares no words.
    interaction: Tensor | None = None

    @property
    def score(self) -> Tensor:
        """float32 [P]: higher = matches better."""
        if self.logits.shape[1] == 1:
            return self.logits[:, 0]
        return self.logits[:, 1] - self.logits[:, 0]


# --- losses: each returns the terms whose mean is the loss ---


def hinge_terms(score: Tensor, batch: MatchingBatch, margin: float) -> Tensor:
    """How far each list's better candidates miss being `margin` above its worse ones.

    max(0, margin - better + worse), the mean over all pairs of candidates of a list in which the one has the
    higher grade. A list of one grade has no such pair, hence no term.
    """
    scores, grades, mask = _dense(score, batch)
    better = (grades[:, :, None] > grades[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    missing = functional.relu(margin - scores[:, :, None] + scores[:, None, :]) * better
    combinations = better.sum(dim=(1, 2))
    counted = combinations > 0
    return missing.sum(dim=(1, 2))[counted] / combinations[counted]


def softmax_terms(score: Tensor, batch: MatchingBatch) -> Tensor:
    """Each list's cross entropy of the softmax over its candidates' scores against its grades, normalised.

    A list without a positive has nothing to put on top, hence no term.
    """
    scores, grades, mask = _dense(score, batch)
    total = grades.sum(dim=1)
    counted = total > 0
    log_probability = scores.masked_fill(~mask, -torch.inf)[counted].log_softmax(dim=1)
    # Where there is no candidate, 0 times minus infinity is to be 0.
    log_probability = log_probability.masked_fill(~mask[counted], 0.0)
    return -(grades[counted] / total[counted, None] * log_probability).sum(dim=1)


def cross_entropy_terms(logits: Tensor, batch: MatchingBatch) -> Tensor:
    """Each pair's cross entropy; a pair's only logit is that of its match, and grades above 0 match."""
    counted = _counted(batch)
    target = batch.target[counted] > 0
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(
            logits[counted, 0], target.to(logits.dtype), reduction="none"
        )
    return functional.cross_entropy(logits[counted], target.long(), reduction="none")


def _counted(batch: MatchingBatch) -> Tensor:
    return (batch.weight > 0) & ~batch.target.isnan()


def _dense(score: Tensor, batch: MatchingBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, grades and mask of candidates as lists [B, C]; 0 where there is none."""
    shape = (0, 0)
    if len(score):
        lists, places = torch.stack([batch.list.max(), batch.place.max()]).tolist()
        shape = (lists + 1, places + 1)
    at = (batch.list, batch.place)
    mask = torch.zeros(shape, dtype=torch.bool, device=score.device).index_put(at, _counted(batch))
    scores = score.new_zeros(shape).index_put(at, score)
    grades = score.new_zeros(shape).index_put(at, batch.target.to(score.dtype)).masked_fill(~mask, 0.0)
    return scores, grades, mask


def new_scores(goal: str, data: Any) -> MatchingScores:
    """Scores for `ranking` or `classification`.

    Args:
        goal: the spec's.
        data: the data module, which says in `keep_questions_without_positive` what to do about these; None =
            they are left out.
    """
    if goal == "classification":
        return PairScores()
    return RankingScores(getattr(data, "keep_questions_without_positive", False))


class MatchingTask(Task):
    """Base of the models that score pairs."""

    task = "matching"
    spec_type = MatchingSpec
    spec: MatchingSpec | None

    def __init__(
        self,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: Loss = "hinge",
        margin: float = 1.0,
    ) -> None:
        """Choose what is minimised.

        Args:
            optimizer: makes the optimizer.
            lr_scheduler: makes the schedule.
            loss: `hinge`: a better candidate's score should be `margin` above a worse one's; `softmax`: the
                softmax over a question's candidates should be its grades; `cross_entropy`: each pair by itself,
                the only choice for pairs to classify.
            margin: of the hinge.

        Raises:
            InputError: no such loss, or a margin that is not above 0.
        """
        super().__init__(optimizer, lr_scheduler)
        if loss not in ("hinge", "softmax", "cross_entropy"):
            raise InputError(f"model.loss {loss!r}: must be hinge, softmax or cross_entropy")
        if not margin > 0:
            raise InputError(f"model.margin {margin}: must be above 0")
        self.loss = loss
        self.margin = margin

    @property
    def sees_constants(self) -> bool:
        """Whether a constant in all scores matters: not to losses that compare candidates."""
        return self.loss == "cross_entropy"

    def check_data(self, data: Any) -> None:
        """See `Task.check_data`: lists that the loss can compare."""
        super().check_data(data)
        if data.batches == "pointwise" and self.loss != "cross_entropy":
            raise InputError(
                f"model.loss={self.loss} compares a question's candidates, and data.batches=pointwise gives it one"
                " pair at a time: use model.loss=cross_entropy"
            )

    def setup(self, stage: str) -> None:
        """Make the network, and the scores that the trainer's data asks for."""
        super().setup(stage)
        if self.network is not None:
            self.make_scores()

    def make_scores(self) -> None:
        """Scores of validation and test, of rankings or of pairs."""
        assert self.spec is not None
        if self.spec.goal == "classification" and self.loss != "cross_entropy":
            raise InputError(
                f"model.loss {self.loss} compares a question's candidates, and these are pairs to classify: use"
                " model.loss cross_entropy"
            )
        data = getattr(self._trainer, "datamodule", None) if self._trainer is not None else None
        self.validation_scores = new_scores(self.spec.goal, data)
        self.test_scores = new_scores(self.spec.goal, data)

    # --- steps ---

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Run the network on a batch."""
        if self.network is None:
            raise InputError("the model has no weights yet: train it, or load a checkpoint with zoo.load")
        output: MatchingOutput = self.network(batch)
        return output

    def loss_terms(self, output: MatchingOutput, batch: MatchingBatch) -> Tensor:
        """What the loss of a batch is the mean of: a term a list, or with cross entropy a term a pair."""
        if self.loss == "hinge":
            return hinge_terms(output.score, batch, self.margin)
        if self.loss == "softmax":
            return softmax_terms(output.score, batch)
        return cross_entropy_terms(output.logits, batch)

    def training_step(self, batch: MatchingBatch, batch_idx: int) -> Tensor:
        """Mean loss of a batch."""
        output = self(batch)
        terms = self.loss_terms(output, batch)
        # Without a term there is nothing to learn from, but every process must go backward.
        loss = terms.mean() if len(terms) else 0.0 * output.logits.sum()
        self.log("train/loss", loss, prog_bar=True, batch_size=max(1, len(terms)))
        return loss

    def validation_step(self, batch: MatchingBatch, batch_idx: int) -> None:
        """Count a batch."""
        self._count(self.validation_scores, batch)

    def on_validation_epoch_end(self) -> None:
        """Log the scores of the validation pairs."""
        self._log_scores(self.validation_scores, "val")

    def test_step(self, batch: MatchingBatch, batch_idx: int) -> None:
        """Count a batch."""
        self._count(self.test_scores, batch)

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test pairs."""
        self._log_scores(self.test_scores, "test")

    def _count(self, scores: MatchingScores, batch: MatchingBatch) -> None:
        output = self(batch)
        terms = self.loss_terms(output, batch)
        scores.update(output.score, batch.target, batch.weight, batch.list, terms)

    def _log_scores(self, scores: MatchingScores, stage: str) -> None:
        values = scores.compute()
        scores.reset()
        shown = ("map", "accuracy") if stage == "val" else ()
        for name, value in values.items():
            # compute() has already summed over processes: nothing is left to reduce.
            self.log(
                f"{stage}/{name}", value.to(self._log_dtype()), prog_bar=name in shown, rank_zero_only=False
            )

    def probability(self, score: Tensor) -> Tensor | None:
        """Probabilities [P] that pairs of these scores [P] match; None where only the scores' order was learned."""
        return score.sigmoid() if self.loss == "cross_entropy" else None

    def predict_step(self, batch: MatchingBatch, batch_idx: int) -> dict[str, Tensor]:
        """Scores [P], row numbers [P] and weights [P] of a batch, on the CPU, and probabilities if there are."""
        score = self(batch).score
        found = {"score": score, "index": batch.index, "weight": batch.weight}
        if (probability := self.probability(score)) is not None:
            found["probability"] = probability
        return {name: value.cpu() for name, value in found.items()}
