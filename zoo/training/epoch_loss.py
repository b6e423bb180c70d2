"""The losses of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from datamodules.core.errors import InputError


class EpochLoss:
    """Sums of the losses of an epoch, kept on the device: reading them would wait for each step.

    A `Task` makes it, and reads it at the end of an epoch, and as often as metrics are logged.
    """

    def __init__(self) -> None:
        self._sum: Tensor | float = 0.0
        self._count: Tensor | int = 0
        self._is_finite: Tensor | bool = True

    def add(self, loss: Tensor, count: int | Tensor) -> None:
        """Add the mean loss of a number of texts."""
        # Lightning's own mean takes a third of a millisecond of every step.
        self._sum = self._sum + count * loss.detach()
        self._count += count

    def mean(self) -> Any:
        """Return the mean loss of a text; None before the first step."""
        return self._sum / self._count if self._count else None

    def is_finite_after(self, outputs: Tensor | Mapping[str, Any] | None) -> Tensor | bool:
        """Return True if this result of a step is finite, and those of all steps before."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._is_finite = loss.isfinite() & self._is_finite
        return self._is_finite


def diverged(figure: str, epoch: int, step: int) -> InputError:
    """Return the error of a training with a figure that is not finite; epochs from 0."""
    return InputError(
        f"training diverged: {figure} is not finite in epoch {epoch + 1}, step {step}; use a lower learning rate"
        " (--model.optimizer.lr) or --trainer.gradient_clip_val; earlier checkpoints are kept"
    )
