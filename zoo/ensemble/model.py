"""The default for a table of one's own: members that read the text and its memories, and a few weights."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval import Memory
from zoo.ensemble.answer import Answer, AnswerScores, LeftOut, number_groups
from zoo.ensemble.base import EnsembleModel
from zoo.ensemble.fit import EnsembleFit
from zoo.ensemble.network import EnsembleOutput
from zoo.ensemble.pool import Pool
from zoo.ensemble.refit import refit
from zoo.tasks.classification.held_out import HeldOutRows
from zoo.tasks.classification.metrics import ClassificationScores
from zoo.training.checkpoints import CHECKPOINT_KEY, meta_of_start

log = logging.getLogger("zoo")


class MemoryEnsemble(EnsembleModel):
    """A log-linear pool (Genest and Zidek 1986) of independent members that read texts and neighbors.

    Example:
        >>> model = MemoryEnsemble(members=["lexical", "lexical_vote"])
    """

    #: of the encoder's own classifier.
    monitor: ClassVar[str | None] = "val/encoder_accuracy"
    fits_weights: ClassVar[bool] = True
    takes_new_labels: ClassVar[bool] = True

    # --- the encoder's training, and the fit of everything else ---

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage != "fit":
            return
        trainer: Any = self.trainer
        if trainer.max_epochs is None or trainer.max_epochs < 0:
            raise InputError("trainer.max_epochs: set the number of epochs of the encoder's training")
        data = self.text_data
        validation_rows = len(data.split("validation").independent_rows)
        training_rows = data.split("train").rows
        if validation_rows == 0 and len(np.unique(data.duplicate_keys(training_rows))) < 2:
            raise InputError(
                f"{training_rows.source}: a single text, so that no other is left to fit weights on; give more rows"
            )
        if self.init_from is not None and validation_rows < self.few_rows:
            # Cross-fitting reads the rows of its training at the end: refuse before the first stage.
            try:
                meta_of_start(self.init_from)
            except InputError as error:
                raise InputError(
                    f"model.init_from: {error}; to fit the weights, its training rows must be known"
                ) from error
        for reason, names in self.unusable.items():
            log.info("not used, since %s: %s", reason, ", ".join(names))

    @override
    def on_train_start(self) -> None:
        super().on_train_start()
        self.network.pool = None  # of a finished run that is trained further
        epochs = self.trainer.max_epochs
        self.show_stage(f"stage 1 of 4: the encoder learns without memory, {epochs} epochs")

    @override
    def on_train_epoch_start(self) -> None:
        (optimizer,) = self.trainer.optimizers
        groups = [
            {
                name: float(value) if isinstance(value, Tensor) else value
                for name, value in group.items()
                if name != "params"
            }
            for group in optimizer.param_groups
        ]
        accumulated = int(self.trainer.accumulate_grad_batches)
        self.epochs[self.current_epoch :] = [{"accumulated": accumulated, "groups": groups}]

    @override
    def training_step(self, batch: ClassificationBatch, batch_idx: int) -> Tensor:
        loss = functional.cross_entropy(self.network.encoder_logits(batch), batch.target)
        self.log_loss(loss, len(batch.target))
        return loss

    @override
    def on_validation_epoch_end(self) -> None:
        if self.network.pool is None:
            scores = self.validation_scores.compute()
            # An encoder that has learned the duplicates by heart is not the best one.
            accuracy = scores.get("accuracy_without_duplicates", scores["accuracy"])
            self.log("val/encoder_accuracy", accuracy, rank_zero_only=False)
        super().on_validation_epoch_end()

    @override
    def finish(self, data: Any) -> None:
        fit = EnsembleFit(self, data)
        self.answer, self.held_out = fit.run(), fit.held_out
        data.retriever.close()

    # --- evaluation ---

    @override
    def attach(self, split: str) -> None:
        super().attach(split)
        if self.is_evaluated(split) and self.network.pool is not None:
            data = self.text_data
            self.network.measures_table = split == "test"
            self.network.excludes_duplicates = data.excludes_duplicates(split)
            self.read_memory(data, data.open_memory())
            self._make_scores()  # for the labels that only the memory has
            self.to(self.device)

    @override
    def batch_contents(self, split: str) -> BatchContents:
        contents = super().batch_contents(split)
        return contents._replace(memory_texts=False, new_labels=self.new_labels)

    @override
    def count(self, scores: ClassificationScores, batch: ClassificationBatch) -> None:
        output: EnsembleOutput = self(batch)
        scores.update(output.logits, batch.target, batch.weight, batch.is_duplicate, batch.row)
        if output.table:
            if self._answer_scores is None:
                split = self.text_data.split("test")
                groups = number_groups(self.text_data.duplicate_keys(split.rows), split.independent_rows)
                self._answer_scores = AnswerScores(list(output.table), groups).to(batch.target.device)
            self._answer_scores.update(output.table, batch.target, batch.row, batch.weight)

    @override
    def on_test_start(self) -> None:
        super().on_test_start()
        self._answer_scores = None

    @override
    def on_test_epoch_end(self) -> None:
        super().on_test_epoch_end()
        if self._answer_scores is not None:
            lines = self._answer_scores.lines(self.network.pool.weights["all"])
            left_out = LeftOut.of(self.text_data.split("test").duplicates)
            self.evaluation.table = Answer("test", lines, [], left_out).as_json()
        self.network.measures_table = False

    # --- what is fitted again for a memory that has grown ---

    def refit(self, data: Any, memory: Memory | None, rows: Rows | None, members: bool = False) -> str:
        """Fit the weights again on labelled rows, after the members; return a report."""
        return refit(self, data, memory, rows, members)

    def describe_weights(self) -> PlainDict | None:
        """Calibrations and weights as plain values."""
        pool: Pool | None = self.network.pool
        return None if pool is None else pool.describe()

    def use_weights(self, weights: PlainDict) -> None:
        """Replace calibrations and weights."""
        self.network.pool = Pool.of(weights)

    @override
    def describe_held_out(self) -> PlainDict | None:
        return None if self.held_out is None else self.held_out.describe()

    def describe_members(self) -> PlainDict:
        """Values of the fitted members."""
        values: PlainDict = self.network.describe_members()
        return values

    def use_members(self, values: PlainDict) -> None:
        """Replace the values of the fitted members."""
        self.network.use_members(values)

    # --- checkpoints ---

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[CHECKPOINT_KEY]["epochs"] = list(self.epochs)
        has_pool = self.network.pool is not None  # a finished run that is trained further has none
        checkpoint[CHECKPOINT_KEY]["held_out"] = self.describe_held_out() if has_pool else None

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        own = checkpoint[CHECKPOINT_KEY]
        self.held_out = None if own["held_out"] is None else HeldOutRows.of(own["held_out"])
        self.epochs = list(own["epochs"])
