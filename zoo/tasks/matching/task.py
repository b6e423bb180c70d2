"""Base of the models that score pairs of texts: steps, loss, scores."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.matching.datamodule import MatchingDataModule
from zoo.tasks.base import Task, check_choice, check_positive
from zoo.tasks.matching.losses import cross_entropy_terms, hinge_terms, softmax_terms
from zoo.tasks.matching.metrics import MatchingScores, PairScores, RankingScores
from zoo.tasks.matching.outputs import MatchingOutput
from zoo.tasks.matching.predictor import MatchingModel, MatchingPredictor

Loss: TypeAlias = Literal["hinge", "softmax", "cross_entropy"]


class MatchingTask(Task[MatchingDataModule], MatchingModel):
    """Base of the models that score pairs."""

    task = "matching"
    pipeline_tag = "text-ranking"
    spec_type = MatchingSpec
    predictor_type = MatchingPredictor
    shown = ("map", "accuracy")
    spec: MatchingSpec | None

    #: default loss for ranking; pairs to classify have cross entropy.
    ranking_loss: ClassVar[Loss] = "hinge"

    def __init__(self, loss: Loss | None = None, margin: float = 1.0, **shared: Any) -> None:
        """Choose the loss.

        Args:
            loss: `hinge`: a better candidate's score should be `margin` above a worse one's; `softmax`: the softmax
                over a question's candidates should equal its grades; `cross_entropy`: each pair by itself. None = that
                of the model's paper, or cross entropy for pairs to classify, which have no other.
            margin: of the hinge.
            **shared: options of all models, see `Task`.
        """
        super().__init__(**shared)
        if loss is not None:
            check_choice("loss", loss, ("hinge", "softmax", "cross_entropy"))
        check_positive(margin=margin)
        self.chosen_loss, self.margin = loss, margin

    def loss_for(self, goal: str) -> Loss:
        """The loss for data of this goal."""
        return self.chosen_loss or ("cross_entropy" if goal == "classification" else self.ranking_loss)

    @property
    def loss(self) -> Loss:
        """The loss, once the data is known."""
        assert self.spec is not None
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
                f"model.loss={loss} compares a question's candidates, and these are pairs to classify: use"
                " model.loss=cross_entropy"
            )
        if data.options.chosen_batches == "pointwise":
            raise InputError(
                f"model.loss={loss} compares a question's candidates, and data.batches=pointwise gives it one"
                " pair at a time: use model.loss=cross_entropy"
            )

    @override
    def new_scores(self) -> MatchingScores:
        assert self.spec is not None
        if self.spec.goal == "classification":
            return PairScores()
        return RankingScores()

    @override
    def count(self, scores: MatchingScores, batch: MatchingBatch) -> None:
        output = self(batch)
        terms = self.loss_terms(output, batch)
        scores.update(output.score, batch.target, batch.weight, batch.query, terms, batch.is_duplicate)

    def loss_terms(self, output: MatchingOutput, batch: MatchingBatch) -> Tensor:
        """Terms whose mean is the loss of a batch: one per list, or with cross entropy one per pair."""
        if self.loss == "hinge":
            return hinge_terms(output.score, batch, self.margin)
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

    @override
    def probability(self, score: Tensor) -> Tensor | None:
        return score.sigmoid() if self.loss == "cross_entropy" else None

    @override
    def shown_predictions(self, data: MatchingDataModule, rows: int) -> tuple[list[str], list[list[object]]]:
        split, lines = data.split("validation"), list[list[object]]()
        for row, prediction in MatchingPredictor(self, data).predict_split(split, rows).items():
            words = "\n".join(
                f"{pair.strength:+.3f} {pair.first} - {pair.second}" for pair in prediction.words
            )
            grade = float(split.pairs.target[row])
            lines.append([prediction.first, prediction.second, grade, prediction.score, words])
        return ["first", "second", "label", "score", "words"], lines
