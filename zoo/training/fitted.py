"""Models that are fitted once on the training rows, without gradient steps: what every table is compared with.

The same commands train, test and predict with them, and their checkpoint loads alone: what was fitted is a part of the
state dict.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from datamodules.base import TextDataModule
from datamodules.core.errors import InputError


def planes_of(machine: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weight [C, V] and bias [C] of a linear classifier of scikit-learn, which has one plane for two classes."""
    weight, bias = machine.coef_, machine.intercept_
    if len(bias) > 1:
        return weight, bias
    # Halves: the softmax of both scores is then the probability that logistic regression means.
    return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2


class FittedNetwork(nn.Module):
    """Keeps what was fitted: plain values and tensors, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fitted: dict[str, Any] = {}
        # Nothing learns, but DistributedDataParallel refuses a module in which nothing could.
        self.unused = nn.Parameter(torch.zeros(()))

    def get_extra_state(self) -> dict[str, Any]:
        """For the state dict."""
        return self.fitted

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """From the state dict."""
        self.fitted = state


class Fitted:
    """A model that `fit_to` makes; goes before the task among a model's bases."""

    depends_on_seed: ClassVar[bool] = False

    network: Any
    trainer: Any
    options: Any

    def fit_to(self, data: TextDataModule[Any, Any]) -> None:
        """Fit the network to the training rows; every process does it by itself and finds the same."""
        raise NotImplementedError

    def check_data(self, data: TextDataModule[Any, Any]) -> None:
        """See `Task.check_data`: and no option of a training."""
        super().check_data(data)  # type: ignore[misc]
        for name in ("init_from", "freeze", "learning_rates"):
            if self.options[name]:
                raise InputError(
                    f"model.{name}: a {type(self).__name__} has no weights that are trained; leave it out"
                )

    def setup(self, stage: str) -> None:
        """See `Task.setup`; a fit is one step in which nothing moves, so that Lightning validates and saves."""
        super().setup(stage)  # type: ignore[misc]
        if stage == "fit":
            self.trainer.limit_train_batches = 1
            self.trainer.fit_loop.max_epochs = 1

    def on_fit_start(self) -> None:
        """Fit the network."""
        super().on_fit_start()  # type: ignore[misc]
        if self.trainer.ckpt_path is None:
            self.fit_to(self.trainer.datamodule)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Nothing to learn."""
        loss: Tensor = self.network.unused * 0.0
        return loss

    def describe_size(self) -> str:
        """No parameter is trained."""
        return "none that is trained"
