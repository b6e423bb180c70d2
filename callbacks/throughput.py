"""How fast a run trains, and whether it waits for its data."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from typing_extensions import override


class Throughput(Callback):
    """Logs `train/examples_per_second` and `train/waiting_share` once an epoch.

    The waiting share is the part of an epoch's training time that passes between the end of one step and
    the start of the next, i.e. fetching a batch and moving it to the device: 0 when data is always ready.
    """

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start = self._ready = time.perf_counter()
        self._waited = 0.0
        self._examples = 0

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._waited += time.perf_counter() - self._ready

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._examples += len(batch.row) * trainer.world_size
        self._ready = time.perf_counter()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Up to the last step: the validation that runs inside the epoch is not training time.
        seconds = max(self._ready - self._start, 1e-9)
        pl_module.log_dict(
            {
                "train/examples_per_second": self._examples / seconds,
                "train/waiting_share": min(self._waited / seconds, 1.0),
            }
        )
