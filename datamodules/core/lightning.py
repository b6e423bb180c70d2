"""Lightning's names that our models and data modules are made of, or stand-ins in a process that only predicts.

Lightning imports torchmetrics, transformers, matplotlib and the compiler of PyTorch, which takes seconds and hundreds
of megabytes. A prediction needs none of them. `zoo predict`, `zoo encode` and `zoo serve` call `predict_only` before
they import a model. In all other processes, and in Python, these names are Lightning's own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule as LightningDataModule
    from pytorch_lightning import LightningModule as LightningModule
    from pytorch_lightning.cli import LRSchedulerCallable as LRSchedulerCallable
    from pytorch_lightning.cli import OptimizerCallable as OptimizerCallable
    from pytorch_lightning.trainer.states import TrainerFn as TrainerFn
    from torchmetrics import Metric as Metric

_MODULES = {
    "LRSchedulerCallable": "pytorch_lightning.cli",
    "LightningDataModule": "pytorch_lightning",
    "LightningModule": "pytorch_lightning",
    "Metric": "torchmetrics",
    "OptimizerCallable": "pytorch_lightning.cli",
    "TrainerFn": "pytorch_lightning.trainer.states",
}
_predicts_only = False


def predict_only() -> None:
    """Use stand-ins in this process, in which nothing is trained, unless it has imported Lightning already."""
    global _predicts_only
    _predicts_only = _predicts_only or "pytorch_lightning" not in sys.modules


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "datamodules.core.stand_ins" if _predicts_only else _MODULES[name]
    # All classes of a process have the same bases.
    return globals().setdefault(name, getattr(import_module(module), name))
