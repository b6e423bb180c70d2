"""Predictions with their evidence, as a table on the dashboard."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override


class PredictionTable(Callback):
    """Logs a table of validation rows to W&B: what the model predicts, beside the truth and the evidence."""

    def __init__(self, num_texts: int = 50, every_n_epochs: int = 1) -> None:
        """Choose the size of the table.

        Args:
            num_texts: the first validation texts or questions are shown, so many.
            every_n_epochs: how often a table is logged.
        """
        self.num_texts = num_texts
        self.every_n_epochs = every_n_epochs

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        if trainer.sanity_checking or not loggers or trainer.current_epoch % self.every_n_epochs:
            return
        if not trainer.is_global_zero:
            return
        model: Any = pl_module
        columns, lines = model.shown_predictions(trainer.datamodule, self.num_texts)  # type: ignore[attr-defined]
        for logger in loggers:
            logger.log_table("val/predictions", columns=columns, data=lines, step=trainer.global_step)
