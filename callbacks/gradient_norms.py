"""How large the gradients are."""

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

    `train/gradient_norm` is that of the step where it is logged, as often as the loss; `train/gradient_norm_epoch` the
    mean over an epoch's steps, of which there may be fewer than `log_every_n_steps`.
    """

    def __init__(self) -> None:
        #: of the epoch's steps so far.
        self._norms: list[Tensor] = []

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        gradients = [weight.grad.detach() for weight in pl_module.parameters() if weight.grad is not None]
        norms = [torch.linalg.vector_norm(gradient.float()) for gradient in gradients]
        if not norms:
            return
        norm = torch.linalg.vector_norm(torch.stack(norms))
        # Of gradients in parts, each process knows its own: together they are the norm.
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        # Which steps are logged is Lightning's to say, after the step.
        pl_module.log("train/gradient_norm", norm)
        self._norms.append(norm)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._norms:
            norms = torch.stack(self._norms)
            # In 16-mixed, steps whose gradients overflow are left out.
            mean = norms[norms.isfinite()].mean()
            pl_module.log("train/gradient_norm_epoch", mean, sync_dist=True)
        self._norms.clear()
