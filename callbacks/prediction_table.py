"""Predictions with their evidence, as a table."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from callbacks.chart import write_table
from callbacks.charts import charts_folder, check_look, is_due


class PredictionTable(Callback):
    """Writes what the model predicts for validation rows, beside the truth and the evidence, for people to read.

    The run folder has it as `charts/predictions.csv`, W&B as `val/predictions`.
    """

    def __init__(self, num_texts: int = 50, every_n_epochs: int = 1) -> None:
        """Choose the size of the table.

        Args:
            num_texts: the first validation texts or questions are shown, so many.
            every_n_epochs: how often it is written.

        Raises:
            InputError: one of them is below 1.
        """
        check_look(num_texts, every_n_epochs)
        self.num_texts = num_texts
        self.every_n_epochs = every_n_epochs

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not is_due(trainer, self.every_n_epochs):
            return
        model: Any = pl_module
        columns, lines = model.shown_predictions(trainer.datamodule, self.num_texts)  # type: ignore[attr-defined]
        write_table(charts_folder(trainer) / "predictions.csv", columns, lines)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_table("val/predictions", columns=columns, data=lines, step=trainer.global_step)
