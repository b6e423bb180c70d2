"""Stand-ins for Lightning's names, with the few members that predictions use; see `datamodules.core.lightning`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from datamodules.core.types import PlainDict

#: Of options and stages of a training, which a prediction does not read.
LRSchedulerCallable = OptimizerCallable = TrainerFn = object
#: Base of metrics, of which a prediction makes none.
Metric = nn.Module


class LightningModule(nn.Module):
    """A module that knows its device."""

    _trainer = None
    #: the options, which only a training keeps.
    hparams: ClassVar[PlainDict] = {}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        weight = next(self.parameters(), None)
        return torch.device("cpu") if weight is None else weight.device

    def save_hyperparameters(self, ignore: Sequence[str] = ()) -> None:
        """Do nothing: only a training writes them."""


class LightningDataModule:
    """Data without a trainer."""

    trainer = None
