"""Models that are fitted to the training rows in one step, without gradients; state dicts hold the fitted values."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.base import AnyDataModule
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.tasks.base import Task


class FittedNetwork(nn.Module):
    """Keeps fitted values: plain values and tensors, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fitted: PlainDict = {}
        # No parameter learns, but DistributedDataParallel refuses a module without one that could.
        self.unused = nn.Parameter(torch.zeros(()))

    def get_extra_state(self) -> PlainDict:
        """The fitted values, for the state dict."""
        return self.fitted

    def set_extra_state(self, state: PlainDict) -> None:
        """Take the fitted values of a state dict."""
        self.fitted = state


class Fitted(Task):
    """A model that `fit_to` fits; precedes the task among a model's bases."""

    depends_on_seed: ClassVar[bool] = False

    def fit_to(self, data: AnyDataModule) -> None:
        """Fit the network to the training rows; every process fits by itself and gets the same result."""
        raise NotImplementedError

    @override
    def check_data(self, data: AnyDataModule) -> None:
        super().check_data(data)
        for name in ("init_from", "freeze", "learning_rates", "compile"):
            if self.hparams[name]:
                raise InputError(f"model.{name}: a {type(self).__name__} has no trained weights; omit it")

    @override
    def idle_options(self, data: AnyDataModule) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        reason = f"a {type(self).__name__} is fitted without gradient steps"
        default = signature(Task.__init__).parameters["optimizer"].default
        # A command line passes a copy of the default: what is made is compared.
        made, other = (make([nn.Parameter(torch.zeros(()))]) for make in (self.make_optimizer, default))
        if type(made) is not type(other) or made.defaults != other.defaults:
            yield "model.optimizer", reason
        if self.make_lr_scheduler is not None:
            yield "model.lr_scheduler", reason

    @override
    def setup(self, stage: str) -> None:
        # A fit is one step in which no weight changes, so that Lightning validates and saves.
        super().setup(stage)
        if stage == "fit":
            trainer: Any = self.trainer
            trainer.limit_train_batches = 1
            trainer.fit_loop.max_epochs = 1

    @override
    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.trainer.ckpt_path is None and self.data is not None:
            self.fit_to(self.data)

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.network.unused * 0.0
        return loss
