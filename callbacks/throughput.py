"""Training speed, and the time spent waiting for data."""

from __future__ import annotations

import time
from typing import Protocol

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from typing_extensions import override


class Batch(Protocol):
    """A batch with the number of each of its rows."""

    row: Tensor


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
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: Batch, *_: object
    ) -> None:
        self._examples += len(batch.row) * trainer.world_size
        self._ready = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Up to the last step: the validation that runs inside the epoch is not training time.
        seconds = max(self._ready - self._start, 1e-9)
        speed = self._examples / seconds
        pl_module.log_dict(
            {"train/examples_per_second": speed, "train/waiting_share": min(self._waited / seconds, 1.0)}
        )
