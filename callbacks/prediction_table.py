"""Predictions with their memories, as a table on the dashboard."""

from __future__ import annotations

from typing import Any, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger

from zoo.inference import predict_split
from zoo.tasks.classification import ClassificationTask


class PredictionTable(Callback):
    """Logs a table of validation texts to W&B: prediction, truth, and each memory with label and weight."""

    def __init__(self, num_texts: int = 50, every_n_epochs: int = 1) -> None:
        """Choose the size of the table.

        Args:
            num_texts: rows of the table: the first validation rows.
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
        columns = ["text", "label", "predicted", "probability", "memories"]
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        rows = []
        split = data.split("validation")
        predictions = predict_split(cast(ClassificationTask, pl_module), data, split, rows=self.num_texts)
        for row, prediction in enumerate(predictions):
            memories = "\n".join(
                f"{m.weight:+.3f} [{m.label}] {m.text} (score {m.retrieval_score:.2f})"
                for m in prediction.memories
            )
            truth = split.rows.label(row)
            rows.append([prediction.text, truth, prediction.label, prediction.probability, memories])
        for logger in loggers:
            logger.log_table("val/predictions", columns=columns, data=rows, step=trainer.global_step)
