"""Metrics of a run in one CSV file, the speed of the training, and the norms of its gradients."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.loggers.logger import rank_zero_experiment
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import CSVLogger
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from typing_extensions import override


class CSVMetrics(CSVLogger):
    """Writes `metrics.csv` into the run folder, with epochs from 1. An older file is continued, not deleted."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(save_dir=folder, name="", version="")

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer, which continues the columns of an existing file."""
        if self._experiment is None:
            file = Path(self.log_dir) / "metrics.csv"
            before = file.read_bytes() if file.exists() else None
            writer: Any = super().experiment
            if before:
                file.write_bytes(before)
                writer.metrics_keys = next(csv.reader(before.decode().splitlines()))
            return writer
        return self._experiment

    @override
    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        # Learning rates come without an epoch.
        number = {"epoch": metrics["epoch"] + 1} if "epoch" in metrics else {}
        super().log_metrics({**metrics, **number}, step)


class GradientNorms(Callback):
    """Logs the norm of all gradients before they are clipped, of steps and as the mean of an epoch."""

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
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
