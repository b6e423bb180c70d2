"""Nesterov's momentum with the schedule that LSTM-RNN was trained by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

#: Momentum of most updates, and of the first and last share of them.
_INNER, _OUTER, _OUTER_SHARE = 0.995, 0.9, 0.02


class ScheduledNesterov(torch.optim.SGD):
    """Gradient descent of a fixed step size whose momentum is low in the first and the last updates.

    Palangi et al. (2016), Section IV: 0.9 in the first and last 2 % of all updates, 0.995 in the other 96 %. The
    momentum is PyTorch's form of Nesterov's, which keeps the parameters where the gradient is taken.
    """

    def __init__(self, params: Any, lr: float = 0.003, total_steps: int | None = None) -> None:
        """Plan the momentum of `total_steps` (None: the trainer's)."""
        super().__init__(params, lr=lr, momentum=_INNER, nesterov=True)
        self.total_steps = total_steps
        for group in self.param_groups:
            group["updates"] = 0  # kept in checkpoints, for resumed runs

    def momentum_at(self, update: int) -> float:
        """Return the momentum of an update, from 0."""
        if self.total_steps is None:
            raise ValueError("total_steps is not known yet")
        outer = math.ceil(_OUTER_SHARE * self.total_steps)
        return _OUTER if update < outer or update >= self.total_steps - outer else _INNER

    @override
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            group["momentum"] = self.momentum_at(group["updates"])
            group["updates"] += 1
        return super().step(closure)
