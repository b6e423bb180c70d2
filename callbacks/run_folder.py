"""The files of a run: its configuration when it starts, a summary when it ends."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from datamodules.core.secrets import redact
from datamodules.core.storage import write_json, write_text


class RunFolder(Callback):
    """Writes `config.yaml` and `summary.json` into a run's folder, and the configuration to the loggers.

    `config.yaml` starts the same run again: `zoo fit --config RUN/config.yaml`. Secrets are left out, and
    the checkpoint of a resumed run, since a run that was resumed is the run that was not.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any]) -> None:
        """Remember where and what.

        Args:
            folder: the run's folder.
            config: the run's whole configuration, plain values.
        """
        self.folder = Path(folder)
        self.config = redact({**config, "ckpt_path": None} if "ckpt_path" in config else config)
        self.started = time.monotonic()
        #: seconds that earlier sessions of a resumed run took, up to the checkpoint.
        self.earlier = 0.0
        #: False while no step was taken; also at the end, where a finished run is resumed.
        self.trained = False

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier = state_dict["seconds"]

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # The configuration is written before the first step; so is what the best epoch is chosen by, which a run that
        # is killed could not tell later.
        best = _best_checkpoint(trainer)
        monitored = {} if best is None else {"monitor": best.monitor, "mode": best.mode}
        for logger in trainer.loggers:
            logger.log_hyperparams({"config": self.config, **monitored})
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            config = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
            write_text(self.folder / "config.yaml", config)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.trained = True
        if trainer.is_global_zero:
            # A resumed run has not ended, whatever its last session wrote.
            (self.folder / "summary.json").unlink(missing_ok=True)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # The summary: best validation scores, size, time, versions.
        if not trainer.is_global_zero:
            return
        if not self.trained:
            # A finished run has its summary already, and no scores of now.
            print(
                f"{trainer.ckpt_path}: finished, nothing to train: its epoch is {trainer.current_epoch} of"
                f" --trainer.max_epochs {trainer.max_epochs}; raise it to go on"
            )
            return
        best = _best_checkpoint(trainer)
        summary = {
            "model": type(pl_module).__name__,
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "trained_parameters": sum(p.numel() for p in pl_module.parameters() if p.requires_grad),
            "seconds": round(self._seconds(), 1),
            "processes": trainer.world_size,
            "device": torch.cuda.get_device_name() if pl_module.device.type == "cuda" else platform.machine(),
            "precision": str(trainer.precision),
            "python": platform.python_version(),
            **{name: version(name) for name in ("memory-zoo", "torch", "pytorch-lightning")},
            "metrics": {name: float(value) for name, value in sorted(trainer.callback_metrics.items())},
        }
        if best is not None and best.best_model_score is not None:
            summary["monitor"], summary["mode"] = best.monitor, best.mode
            summary["best_score"] = float(best.best_model_score)
            summary["best_checkpoint"] = best.best_model_path
        if (answer := getattr(pl_module, "answer", None)) is not None:
            # A model that compares itself with others says what it found.
            answer.write(self.folder)
            print(answer.as_text())
            head, *lines = answer.cells()
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    logger.log_table("answer", columns=head, data=lines)
        write_json(self.folder / "summary.json", summary)


def _best_checkpoint(trainer: pl.Trainer) -> ModelCheckpoint | None:
    """What keeps the best epoch's checkpoint; None where none does."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor:
            return callback
    return None
