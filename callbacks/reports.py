"""Charts and tables of a model's predictions for validation rows."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from callbacks.chart import write_table
from datamodules.core.errors import check_count


class ValidationReport(Callback):
    """Base of callbacks that predict the first validation rows, in one process, and write files in `charts/`.

    Args:
        num_texts: number of validation texts or questions, the first ones.
        every_n_epochs: epochs from one report to the next.
    """

    def __init__(self, num_texts: int = 1000, every_n_epochs: int = 1) -> None:
        check_count("trainer.callbacks.num_texts", num_texts)
        check_count("trainer.callbacks.every_n_epochs", every_n_epochs)
        self.num_texts = num_texts
        self.every_n_epochs = every_n_epochs

    @abstractmethod
    def report(self, trainer: pl.Trainer, model: Any, data: Any, folder: Path) -> None:
        """Write the files into an existing folder, and log them to W&B."""

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        is_due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if is_due and trainer.is_global_zero and not trainer.sanity_checking:
            folder = Path(trainer.default_root_dir) / "charts"
            folder.mkdir(parents=True, exist_ok=True)
            self.report(trainer, pl_module, trainer.datamodule, folder)  # type: ignore[attr-defined]


class Charts(ValidationReport):
    """Writes charts of the evidence behind predictions: `charts/NAME.csv` and `.png` in the run folder, and to W&B."""

    @override
    def report(self, trainer: pl.Trainer, model: Any, data: Any, folder: Path) -> None:
        for chart in model.charts(data, self.num_texts):
            picture = chart.write(folder, trainer.current_epoch + 1)
            for logger in wandb_loggers(trainer) if picture is not None else ():
                logger.log_image(f"charts/{chart.name}", [str(picture)], step=trainer.global_step)


class PredictionTable(ValidationReport):
    """Writes predictions with the truth and the evidence: `charts/predictions.csv`, and `val/predictions` in W&B."""

    def __init__(self, num_texts: int = 50, every_n_epochs: int = 1) -> None:
        super().__init__(num_texts, every_n_epochs)

    @override
    def report(self, trainer: pl.Trainer, model: Any, data: Any, folder: Path) -> None:
        columns, rows = model.shown_predictions(data, self.num_texts)
        write_table(folder / "predictions.csv", columns, rows)
        for logger in wandb_loggers(trainer):
            logger.log_table("val/predictions", columns=columns, data=rows, step=trainer.global_step)


def wandb_loggers(trainer: pl.Trainer) -> list[WandbLogger]:
    """Return the trainer's loggers to W&B."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
