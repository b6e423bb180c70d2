"""Predictions with their evidence, as a table on the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger

from zoo.inference import predict_split
from zoo.matching import predict_pairs
from zoo.tasks.classification import ClassificationTask
from zoo.tasks.ranking import MatchingTask


class PredictionTable(Callback):
    """Logs a table of validation rows to W&B.

    Of a classifier: prediction, truth, and each memory with label and weight. Of a matching model: each
    question's pairs with grade, score and strongest word pairs.
    """

    def __init__(self, num_texts: int = 50, every_n_epochs: int = 1) -> None:
        """Choose the size of the table.

        Args:
            num_texts: the first validation texts or questions are shown, so many.
            every_n_epochs: how often a table is logged.
        """
        self.num_texts = num_texts
        self.every_n_epochs = every_n_epochs

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Predict the first validation rows again and log them."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        if trainer.sanity_checking or not loggers or trainer.current_epoch % self.every_n_epochs:
            return
        if not trainer.is_global_zero:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(pl_module, MatchingTask):
            columns = ["first", "second", "label", "score", "words"]
            rows = list(self._pairs(pl_module, data))
        else:
            columns = ["text", "label", "predicted", "probability", "memories"]
            rows = list(self._texts(cast(ClassificationTask, pl_module), data))
        for logger in loggers:
            logger.log_table("val/predictions", columns=columns, data=rows, step=trainer.global_step)

    def _texts(self, model: ClassificationTask, data: Any) -> Iterator[list[Any]]:
        split = data.split("validation")
        for row, prediction in enumerate(predict_split(model, data, split, rows=self.num_texts)):
            memories = "\n".join(
                f"{m.weight:+.3f} [{m.label}] {m.text} (score {m.retrieval_score:.2f})"
                for m in prediction.memories
            )
            truth = split.rows.label(row)
            yield [prediction.text, truth, prediction.label, prediction.probability, memories]

    def _pairs(self, model: MatchingTask, data: Any) -> Iterator[list[Any]]:
        split = data.split("validation")
        for row, prediction in predict_pairs(model, data, split, self.num_texts).items():
            words = "\n".join(
                f"{pair.strength:+.3f} {pair.first} - {pair.second}" for pair in prediction.words
            )
            grade = float(split.pairs.target[row])
            yield [prediction.first, prediction.second, grade, prediction.score, words]
