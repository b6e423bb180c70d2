"""Norms of the gradients."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.optim import Optimizer
from typing_extensions import override


class GradientNorms(Callback):
    """Logs the norm of all gradients before they are clipped, of steps and as the mean of an epoch."""

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        if not gradients:
            return
        norms = [torch.linalg.vector_norm(gradient.detach().float()) for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        pl_module.log("train/gradient_norm", norm)
        # In 16-mixed, steps whose gradients overflow are skipped.
        if trainer.precision != "16-mixed" or norm.isfinite():
            pl_module.log("train/gradient_norm_epoch", norm, on_step=False, on_epoch=True, batch_size=1)
