"""Norms of the gradients."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override


class GradientNorms(Callback):
    """Logs the norm of all gradients before they are clipped.

    `train/gradient_norm` is logged as often as the loss, `train/gradient_norm_epoch` is the mean over an epoch's steps.
    """

    def __init__(self) -> None:
        self._norms: list[Tensor] = []  # of the epoch's steps so far

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        if not gradients:
            return
        norms = [torch.linalg.vector_norm(gradient.detach().float()) for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        # With sharded weights each process has the norm of its own part.
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        pl_module.log("train/gradient_norm", norm)
        self._norms.append(norm)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._norms:
            norms = torch.stack(self._norms)
            # In 16-mixed, steps whose gradients overflow are skipped.
            mean = norms[norms.isfinite()].mean()
            pl_module.log("train/gradient_norm_epoch", mean, sync_dist=True)
        self._norms.clear()
