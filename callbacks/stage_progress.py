"""One progress bar for a run of several stages, with the name of the stage in front."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import TQDMProgressBar
from typing_extensions import override


class StageProgress(TQDMProgressBar):
    """Lightning's bar; where the model says which stage it is in (`stage`), that stands before the epoch."""

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        super().on_train_epoch_start(trainer, *_)
        model: Any = trainer.lightning_module
        if stage := getattr(model, "stage", ""):
            self.train_progress_bar.set_description(f"{stage}, epoch {trainer.current_epoch + 1}")

    def show_stage(self, stage: str) -> None:
        """Say what is done between two epochs."""
        self.train_progress_bar.set_description(stage)
