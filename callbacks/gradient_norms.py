"""How large the gradients are."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import override


class GradientNorms(Callback):
    """Logs the norm of all gradients, `train/gradient_norm`, before they are clipped, as often as the loss."""

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        watched: Any = trainer
        if trainer.global_step % max(1, watched.log_every_n_steps):
            return
        gradients = [weight.grad.detach() for weight in pl_module.parameters() if weight.grad is not None]
        norms = [torch.linalg.vector_norm(gradient.float()) for gradient in gradients]
        if norms:
            norm = torch.linalg.vector_norm(torch.stack(norms))
            # Of gradients in parts, each process knows its own: together they are the norm.
            pl_module.log("train/gradient_norm", norm.full_tensor() if isinstance(norm, DTensor) else norm)
