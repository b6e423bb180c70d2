"""Checks before a run is resumed: the checkpoint must fit the model, its optimizer and its strategy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from datamodules.core.errors import InputError
from zoo.saving.checkpoint import Checkpoint
from zoo.training.sharding import is_sharded
from zoo.training.trained_parts import parameter_groups

if TYPE_CHECKING:
    from zoo.tasks.base import Task


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
    if is_sharded(model.trainer.strategy) != checkpoint.extras["is_sharded"]:
        raise InputError(
            "the checkpoint was trained with sharded weights (FSDP) and this run has whole ones, or the reverse; resume"
            " with the same trainer.strategy, or start from the weights alone with --model.init_from"
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


def _strings_in(value: object) -> Iterator[str]:
    """Yield the keys and values of nested mappings that are strings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in (*value.keys(), *value.values()):
            yield from _strings_in(part)
