"""Charts and tables of a model's predictions for validation rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from callbacks.chart import Cell, Chart, write_table
from datamodules.core.errors import check_count


class Reporting(Protocol):
    """Methods of a model whose validation is reported."""

    def charts(self, data: pl.LightningDataModule, rows: int) -> Iterable[Chart]:
        """Return charts of the first validation rows."""

    def shown_predictions(
        self, data: pl.LightningDataModule, rows: int
    ) -> tuple[list[str], list[list[Cell]]]:
        """Return columns and rows of a table with predictions for the first validation rows."""


class ValidationReport(Callback):
    """Base of callbacks that predict the first validation rows, in one process, and write files in `charts/`."""

    def __init__(self, num_texts: int = 1000, every_n_epochs: int = 1) -> None:
        """Configure the report.

        Args:
            num_texts: number of validation texts or questions, the first ones.
            every_n_epochs: epochs from one report to the next.
        """
        check_count("trainer.callbacks.num_texts", num_texts)
        check_count("trainer.callbacks.every_n_epochs", every_n_epochs)
        self.num_texts = num_texts
        self.every_n_epochs = every_n_epochs

    @abstractmethod
    def report(self, trainer: pl.Trainer, model: Reporting, folder: Path) -> None:
        """Write the files into an existing folder, and log them to W&B."""

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        is_due = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if is_due and trainer.is_global_zero and not trainer.sanity_checking:
            folder = Path(trainer.default_root_dir) / "charts"
            folder.mkdir(parents=True, exist_ok=True)
            self.report(trainer, cast(Reporting, pl_module), folder)


class Charts(ValidationReport):
    """Writes charts of the evidence behind predictions: `charts/NAME.csv` and `.png` in the run folder, and to W&B.

    The task defines the charts: weights and labels of memories by rank, the turns of a dialogue that are read, the
    ranks of relevant texts (the collection is encoded once more).
    """

    @override
    def report(self, trainer: pl.Trainer, model: Reporting, folder: Path) -> None:
        for chart in model.charts(trainer.datamodule, self.num_texts):  # type: ignore[attr-defined]
            picture = chart.write(folder, trainer.current_epoch)
            for logger in wandb_loggers(trainer) if picture is not None else ():
                logger.log_image(f"charts/{chart.name}", [str(picture)], step=trainer.global_step)


class PredictionTable(ValidationReport):
    """Writes predictions for validation rows with the truth and the evidence, for people.

    The table is `charts/predictions.csv` in the run folder and `val/predictions` in W&B.
    """

    def __init__(self, num_texts: int = 50, every_n_epochs: int = 1) -> None:
        """Configure the table.

        Args:
            num_texts: number of validation texts or questions, the first ones.
            every_n_epochs: epochs from one report to the next.
        """
        super().__init__(num_texts, every_n_epochs)

    @override
    def report(self, trainer: pl.Trainer, model: Reporting, folder: Path) -> None:
        data: pl.LightningDataModule = trainer.datamodule  # type: ignore[attr-defined]
        columns, rows = model.shown_predictions(data, self.num_texts)
        write_table(folder / "predictions.csv", columns, rows)
        for logger in wandb_loggers(trainer):
            logger.log_table("val/predictions", columns=columns, data=rows, step=trainer.global_step)


def wandb_loggers(trainer: pl.Trainer) -> list[WandbLogger]:
    """Return the trainer's loggers to W&B."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
