"""What a model does with validation rows, as tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from datamodules.core.errors import check_count


class Charts(Callback):
    """Writes what the model does with validation rows into the run folder, `charts/NAME.csv` and `.png`, and to W&B.

    Which charts there are is the model's kind to say: of a classifier, which class it takes for which, how often
    memories have a text's own label by their rank, and how much they count for; of a model of dialogues, which turns
    it reads; of one that ranks, how far down the right texts stand, how the scores of right and wrong pairs are spread
    and how strongly the words of a pair interact. Nothing that is learned changes. Of several processes the first
    draws, and encodes a collection that is ranked once more.
    """

    def __init__(self, num_texts: int = 1000, every_n_epochs: int = 1) -> None:
        """Choose how much is looked at.

        Args:
            num_texts: validation rows, the first ones.
            every_n_epochs: how often.

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
        folder = charts_folder(trainer)
        for chart in model.charts(trainer.datamodule, self.num_texts):  # type: ignore[attr-defined]
            picture = chart.write(folder, trainer.current_epoch)
            for logger in trainer.loggers:
                if picture is not None and isinstance(logger, WandbLogger):
                    logger.log_image(f"charts/{chart.name}", [str(picture)], step=trainer.global_step)


def check_look(num_texts: int, every_n_epochs: int) -> None:
    """Refuse to look at nothing, or never.

    Raises:
        InputError: names the option.
    """
    check_count("trainer.callbacks.num_texts", num_texts)
    check_count("trainer.callbacks.every_n_epochs", every_n_epochs)


def is_due(trainer: pl.Trainer, every_n_epochs: int) -> bool:
    """Whether this process looks at the validation that ends."""
    return (
        trainer.is_global_zero
        and not trainer.sanity_checking
        and (trainer.current_epoch + 1) % every_n_epochs == 0
    )


def charts_folder(trainer: pl.Trainer) -> Path:
    """The folder of charts in the run's, made if it is missing."""
    folder = Path(trainer.default_root_dir) / "charts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
