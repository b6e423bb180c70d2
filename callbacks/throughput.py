"""How fast a run trains, and whether it waits for its data."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback


class Throughput(Callback):
    """Logs `train/examples_per_second` and `train/waiting_share` once an epoch.

    The waiting share is the part of an epoch's training time that passes between the end of one step and
    the start of the next, i.e. fetching a batch and moving it to the device: 0 when data is always ready.
    """

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clocks."""
        self._start = self._ready = time.perf_counter()
        self._waited = 0.0
        self._examples = 0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A batch has arrived."""
        self._waited += time.perf_counter() - self._ready

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The step is done."""
        self._examples += len(batch.index) * trainer.world_size
        self._ready = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the epoch."""
        # Up to the last step: the validation that runs inside the epoch is not training time.
        seconds = max(self._ready - self._start, 1e-9)
        pl_module.log_dict(
            {
                "train/examples_per_second": self._examples / seconds,
                "train/waiting_share": min(self._waited / seconds, 1.0),
            }
        )
