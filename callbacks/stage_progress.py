"""A progress bar for runs of several stages."""

from __future__ import annotations

import pytorch_lightning as pl
from pytorch_lightning.callbacks import TQDMProgressBar
from typing_extensions import override


class StageProgress(TQDMProgressBar):
    """Lightning's bar with the model's current `stage`, if it has one, before the epoch."""

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, *_: object) -> None:
        super().on_train_epoch_start(trainer, *_)
        if stage := getattr(trainer.lightning_module, "stage", ""):
            self.train_progress_bar.set_description(f"{stage}, epoch {trainer.current_epoch + 1}")

    def show_stage(self, stage: str) -> None:
        """Show a stage between two epochs."""
        self.train_progress_bar.set_description(stage)
