"""Observers of a run: configuration and summary, metrics and speed, charts and tables of predictions."""

from __future__ import annotations

import csv
import math
import platform
import time
from abc import abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, WandbLogger
from torch import Tensor
from torch.nn.utils import get_total_norm
from typing_extensions import override

from callbacks.chart import write_table
from datamodules.core.errors import check_count
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
        #: `epoch`, from 1, `score` and validation `metrics` of the best epoch; the last one if no finite metric chose.
        self.best: PlainDict = {}

    @override
    def state_dict(self) -> PlainDict:
        return {"seconds": self._seconds(), "best": self.best}

    @override
    def load_state_dict(self, state_dict: PlainDict) -> None:
        self.earlier, self.best = state_dict["seconds"], state_dict.get("best", {})

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
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        metrics = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        validation = {name: value for name, value in metrics.items() if name.startswith("val/")}
        checkpoint = _best_checkpoint(trainer)
        name, mode = ("", "max") if checkpoint is None else (checkpoint.monitor or "", checkpoint.mode)
        score, before = metrics.get(name, math.nan), self.best.get("score", math.nan)
        is_better = score < before if mode == "min" else score > before
        # What is fitted after the epochs belongs to the best one.
        is_finishing = self.best and getattr(pl_module, "is_finishing", False)
        if is_better or is_finishing or not math.isfinite(before):
            number = self.best["epoch"] if is_finishing else trainer.current_epoch + 1
            self.best = {"epoch": number, "score": score, "metrics": validation}

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
            "best": self.best,
        }
        best = _best_checkpoint(trainer)
        if best is not None and best.best_model_score is not None:
            summary["monitor"], summary["mode"] = best.monitor, best.mode
            summary["best_score"] = float(best.best_model_score)
            summary["best_checkpoint"] = best.best_model_path
        return summary


def _best_checkpoint(trainer: pl.Trainer) -> ModelCheckpoint | None:
    checkpoints = (each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint))
    return next((checkpoint for checkpoint in checkpoints if checkpoint.monitor), None)


class CSVMetrics(CSVLogger):
    """Writes `metrics.csv` into the run folder, with epochs from 1. An older file is continued, not deleted."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(save_dir=folder, name="", version="")

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer, which continues the columns of an existing file."""
        file = Path(self.log_dir) / "metrics.csv"
        before = file.read_bytes() if self._experiment is None and file.exists() else None
        writer: Any = super().experiment
        if before:
            file.write_bytes(before)
            writer.metrics_keys = next(csv.reader(before.decode().splitlines()))
        return writer

    @override
    @rank_zero_only
    def log_metrics(self, metrics: PlainDict, step: int | None = None) -> None:
        # Learning rates come without an epoch.
        number = {"epoch": metrics["epoch"] + 1} if "epoch" in metrics else {}
        super().log_metrics({**metrics, **number}, step)


class GradientNorms(Callback):
    """Logs the norm of all gradients before they are clipped, of steps and as the mean of an epoch."""

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object
    ) -> None:
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        if not gradients:
            return
        norm = get_total_norm(gradients)
        pl_module.log("train/gradient_norm", norm)
        # In 16-mixed, steps whose gradients overflow are skipped.
        if trainer.precision != "16-mixed" or norm.isfinite():
            pl_module.log("train/gradient_norm_epoch", norm, on_step=False, on_epoch=True, batch_size=1)


class Throughput(Callback):
    """Logs `train/examples_per_second` and `train/waiting_share` (of the time, between two steps), once an epoch."""

    def __init__(self) -> None:
        self.on_train_epoch_start()  # not called in an epoch that is resumed

    @override
    def on_train_epoch_start(self, *_: object) -> None:
        self._start = self._ready = time.perf_counter()
        self._waited = 0.0
        self._examples = 0

    @override
    def on_train_batch_start(self, *_: object) -> None:
        self._waited += time.perf_counter() - self._ready

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: Any, *_: object
    ) -> None:
        self._examples += len(batch.row) * trainer.world_size
        self._ready = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Up to the last step: the validation that runs inside the epoch is not training time.
        seconds = max(self._ready - self._start, 1e-9)
        pl_module.log("train/examples_per_second", self._examples / seconds)
        pl_module.log("train/waiting_share", min(self._waited / seconds, 1.0))


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
