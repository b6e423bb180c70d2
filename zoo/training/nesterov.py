"""Nesterov's momentum with the schedule that LSTM-RNN was trained by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from datamodules.core.errors import InputError


class ScheduledNesterov(torch.optim.SGD):
    """Gradient descent of a fixed step size whose momentum is low in the first and the last updates.

    Palangi et al. (2016), Section IV: 0.9 in the first and last 2 % of all updates, 0.995 in the other 96 %. The
    momentum is PyTorch's form of Nesterov's, which keeps the parameters where the gradient is taken.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.003,
        momentum: float = 0.995,
        outer_momentum: float = 0.9,
        outer_share: float = 0.02,
        total_steps: int | None = None,
    ) -> None:
        """Use `outer_momentum` in the first and last `outer_share` of `total_steps` (None: the trainer's)."""
        if not 0 < outer_momentum < 1 or not 0 < momentum < 1 or not 0 <= outer_share <= 0.5:
            raise InputError(
                f"model.optimizer: momentum={momentum}, outer_momentum={outer_momentum}: must be between 0 and 1;"
                f" outer_share={outer_share}: at most 0.5"
            )
        super().__init__(params, lr=lr, momentum=momentum, nesterov=True)
        self.inner, self.outer, self.outer_share = momentum, outer_momentum, outer_share
        self.total_steps = total_steps
        for group in self.param_groups:
            group["updates"] = 0  # kept in checkpoints, for resumed runs

    def momentum_at(self, update: int) -> float:
        """Return the momentum of an update, from 0."""
        if self.total_steps is None:
            raise ValueError("total_steps is not known yet")
        outer = math.ceil(self.outer_share * self.total_steps)
        return self.outer if update < outer or update >= self.total_steps - outer else self.inner

    @override
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            group["momentum"] = self.momentum_at(group["updates"])
            group["updates"] += 1
        return super().step(closure)
