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
from torch import Tensor
from typing_extensions import override

from callbacks.reports import wandb_loggers
from datamodules.core.storage import write_json, write_text
from datamodules.core.types import PlainDict


class RunFolder(Callback):
    """Writes `config.yaml`, with which `zoo fit` repeats the run, and `summary.json`."""

    def __init__(self, folder: str | Path, config: PlainDict) -> None:
        self.folder = Path(folder)
        # Options of a command, in a file that repeats the run, would override those of another command.
        self.config = {name: config[name] for name in config if name not in ("ckpt_path", "output")}
        self.started = time.monotonic()
        #: seconds of a resumed run's earlier sessions, up to the checkpoint.
        self.earlier = 0.0
        #: the last metrics of the epochs.
        self.metrics: dict[str, Tensor] = {}

    @override
    def state_dict(self) -> PlainDict:
        return {"seconds": self._seconds()}

    @override
    def load_state_dict(self, state_dict: PlainDict) -> None:
        self.earlier = state_dict["seconds"]

    def _seconds(self) -> float:
        return self.earlier + time.monotonic() - self.started

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Loggers get the monitored metric now: a run that is killed writes no summary.
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
        if trainer.is_global_zero:
            # A resumed run is unfinished again.
            (self.folder / "summary.json").unlink(missing_ok=True)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics = dict(trainer.callback_metrics)
        if not getattr(pl_module, "finishes", False):  # else `zoo.runs.finishing` continues
            self.write(trainer, pl_module)

    def write(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        """Write the summary of a whole run, after the model's comparison of itself with others, if it has one."""
        if not trainer.is_global_zero:
            return
        answer: Any = getattr(model, "answer", None)
        if answer is not None:
            answer.write(self.folder)
            columns, *rows = answer.cells()
            for logger in wandb_loggers(trainer):
                logger.log_table("answer", columns=columns, data=rows)
        write_json(self.folder / "summary.json", self._summary(trainer, model))

    def _summary(self, trainer: pl.Trainer, model: pl.LightningModule) -> PlainDict:
        metrics = self.metrics | dict(trainer.callback_metrics)
        summary = {
            "model": type(model).__name__,
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "seconds": round(self._seconds(), 1),
            "processes": trainer.world_size,
            "device": torch.cuda.get_device_name() if model.device.type == "cuda" else platform.machine(),
            "precision": str(trainer.precision),
            "python": platform.python_version(),
            **{name: version(name) for name in ("memory-zoo", "torch", "pytorch-lightning")},
            "metrics": {name: float(value) for name, value in sorted(metrics.items())},
        }
        best = _best_checkpoint(trainer)
        if best is not None and best.best_model_score is not None:
            summary["monitor"], summary["mode"] = best.monitor, best.mode
            summary["best_score"] = float(best.best_model_score)
            summary["best_checkpoint"] = best.best_model_path
        return summary


def _best_checkpoint(trainer: pl.Trainer) -> ModelCheckpoint | None:
    """Return the callback that keeps the best epoch's checkpoint."""
    checkpoints = (each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint))
    return next((checkpoint for checkpoint in checkpoints if checkpoint.monitor), None)
