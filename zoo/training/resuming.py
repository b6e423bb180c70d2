"""Checks before a run is resumed, and settings of the optimizer and its schedule that differ from the checkpoint's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.saving.checkpoint import Checkpoint
from zoo.training.trained_parts import parameter_groups

if TYPE_CHECKING:
    import pytorch_lightning as pl

    from zoo.tasks.base import Task

log = logging.getLogger("zoo")

#: State of a `ReduceLROnPlateau` that training changes.
_PLATEAU_PROGRESS = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


def check_shapes(model: Task, checkpoint: Checkpoint) -> None:
    """Raise an `InputError` that names the options that differ if weights have other names or shapes."""
    own = {name: value.shape for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    stored = {name: value.shape for name, value in checkpoint.tensors.items()}
    if own == stored:
        return
    differences = [
        f"{name} {checkpoint.options[name]}, not {value}"
        for name, value in model.hparams.items()
        if checkpoint.options.get(name, value) != value
    ]
    raise InputError(
        "the checkpoint's weights do not fit the model: the checkpoint was trained with "
        + ("; ".join(differences) or "other data or another version")
        + ". Give --ckpt_path the same model options as in training"
    )


def check_training(model: Task, checkpoint: Checkpoint) -> None:
    """Raise an `InputError` if strategy, optimizer or trained parts are others than those of the checkpoint."""
    # Lightning deletes earlier checkpoints by the names in its state, and takes `..` in them for a part of its folder.
    if any(".." in Path(name).parts for name in _strings_in(checkpoint.training.get("callbacks"))):
        raise InputError(
            "the state of a callback names files in other folders; start from the weights alone with --model.init_from"
        )
    start = checkpoint.options.get("init_from")
    if model.init_from != start:
        raise InputError(
            f"model.init_from={model.init_from}: the run that is resumed started from {start or 'no other model'}; omit"
            " --ckpt_path to start a new run"
        )
    optimizer = model.make_optimizer([nn.Parameter(torch.zeros(1))])
    states = checkpoint.training.get("optimizer_states", [])
    groups = [group for state in states for group in state["param_groups"]]
    # An optimizer is recognized by its settings.
    if any(optimizer.defaults.keys() - group.keys() for group in groups):
        raise InputError(
            f"model.optimizer={type(optimizer).__name__}: the checkpoint was trained with another optimizer; name that"
            " one, or start from the weights alone with --model.init_from"
        )
    sizes = [len(group["params"]) for group in parameter_groups(model.network, model.learning_rates)]
    if groups and sizes != [len(group["params"]) for group in groups]:
        raise InputError(
            "the checkpoint was trained with other model.freeze or model.learning_rates; use the same values, or start"
            " from the weights alone with --model.init_from"
        )


def settings_of(optimizer: Optimizer) -> list[PlainDict]:
    """Return the settings of each parameter group, such as the learning rate."""
    return [
        {name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]


def keep_options(model: Task, settings: list[PlainDict]) -> None:
    """Give a resumed run the optimizer's settings, schedule and patience that its options name.

    Lightning has restored those of the checkpoint by now. A schedule is computed from its first epoch with the
    options of this run; `ReduceLROnPlateau`, which depends on scores, keeps its reductions so far.

    Args:
        model: the model, with its trainer.
        settings: the settings of the new optimizer, before a schedule changed them.
    """
    optimizer = model.trainer.optimizers[0]
    restored = settings_of(optimizer)
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    for config in model.trainer.lr_scheduler_configs:
        assert model.make_lr_scheduler is not None
        schedule, before = model.make_lr_scheduler(optimizer), config.scheduler
        if not isinstance(schedule, ReduceLROnPlateau):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                # The checkpoint of a run without a schedule has no epoch of one.
                for _ in range(before.last_epoch or model.current_epoch):
                    schedule.step()
        elif isinstance(before, ReduceLROnPlateau):
            for name in _PLATEAU_PROGRESS:
                setattr(schedule, name, getattr(before, name))
            for group, own, old in zip(optimizer.param_groups, settings, restored, strict=True):
                group["lr"] = own["lr"] * (old["lr"] / old["initial_lr"])
        config.scheduler = schedule
    for old, new in zip(restored, settings_of(optimizer), strict=True):
        changes = [
            f"{name} {old.get(name)} -> {value}"
            for name, value in new.items()
            if name != "initial_lr" and old.get(name) != value
        ]
        if changes:
            log.info("other settings of the optimizer than the checkpoint's: %s", ", ".join(changes))


def keep_patience(trainer: pl.Trainer, checkpoint: PlainDict) -> None:
    """Set the patience of each `EarlyStopping` in a checkpoint to that of this run, which Lightning would replace."""
    from pytorch_lightning.callbacks import EarlyStopping

    states = checkpoint.get("callbacks", {})
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping) and callback.state_key in states:
            states[callback.state_key]["patience"] = callback.patience


def _strings_in(value: object) -> Iterator[str]:
    """Yield the keys and values of nested mappings that are strings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in (*value.keys(), *value.values()):
            yield from _strings_in(part)
