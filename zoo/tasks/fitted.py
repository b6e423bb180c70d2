"""Models that are fitted to the training rows in one step, without gradients; state dicts hold the fitted values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from inspect import signature
from typing import ClassVar

import torch
from torch import nn
from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.tasks.base import Task
from zoo.tasks.model import DataT, Given


class _FittedValues(nn.Module):
    """The network of a fitted model: plain values and tensors, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.values: PlainDict = {}

    def get_extra_state(self) -> PlainDict:
        return self.values

    def set_extra_state(self, state: PlainDict) -> None:
        self.values = state


class Fitted(Task[DataT]):
    """A model that `finish` fits to the training rows, without any epoch; precedes the task among a model's bases.

    `finish` sets `fitted`, from which `forward` computes the outputs. A model whose fitted parts are modules overrides
    `build_network` and keeps the `forward` of all models.
    """

    depends_on_seed: ClassVar[bool] = False

    @override
    def build_network(self, given: Given) -> nn.Module:
        return _FittedValues()

    @property
    def fitted(self) -> PlainDict:
        """The fitted values by name; raises an `InputError` before there are any."""
        return self.built_network.values

    @fitted.setter
    def fitted(self, values: PlainDict) -> None:
        self.network.values = values

    @property
    @override
    def has_epochs(self) -> bool:
        return False

    @abstractmethod
    @override
    def finish(self, data: DataT) -> None: ...

    @override
    def check_data(self, data: DataT) -> None:
        super().check_data(data)
        for name in ("init_from", "freeze", "learning_rates"):
            if self.hparams[name]:
                raise InputError(f"model.{name}: a {type(self).__name__} has no trained weights; omit it")

    @override
    def idle_options(self, data: DataT) -> Iterator[tuple[str, str]]:
        yield from super().idle_options(data)
        reason = f"a {type(self).__name__} is fitted without gradient steps"
        default = signature(Task.__init__).parameters["optimizer"].default
        # A command line passes a copy of the default: what is made is compared.
        made, other = (make([nn.Parameter(torch.zeros(()))]) for make in (self.make_optimizer, default))
        if type(made) is not type(other) or made.defaults != other.defaults:
            yield "model.optimizer", reason
        if self.make_lr_scheduler is not None:
            yield "model.lr_scheduler", reason
