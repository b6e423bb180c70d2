"""Trained and frozen parts of a network, and their learning rates.

Shell patterns (`encoder.lstm`, `*.layer.[0-3]`, `*.words`) match modules and parameters, with everything inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from math import inf, isclose
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from datamodules.core.errors import InputError
from datamodules.core.lightning import LRSchedulerCallable
from datamodules.core.types import PlainDict, Positive, check_value

#: Maximum number of names in a message.
_MAX_NAMES = 40


def matches(name: str, pattern: str) -> bool:
    """Return True if a pattern matches this module or parameter, or one that contains it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def freeze_parts(network: nn.Module, patterns: Iterable[str]) -> None:
    """Freeze parts: no gradients and, as in evaluation, no dropout."""
    for pattern in patterns:
        for name in matching_parameters(network, pattern, "model.freeze"):
            network.get_parameter(name).requires_grad_(False)
        for name, module in network.named_modules():
            if name and matches(name, pattern):
                module.eval()


def matching_parameters(network: nn.Module, pattern: str, option: str) -> set[str]:
    """Return the names of the parameters that a pattern matches; raises an `InputError` if there are none."""
    names = {name for name, _ in network.named_parameters() if matches(name, pattern)}
    if not names:
        # Two levels of names, since a message has room for few.
        split = [name.split(".") for name, _ in network.named_parameters()]
        parts = {".".join(each[:depth]) for depth in (1, 2) for each in split}
        listed = ", ".join(sorted(parts)[:_MAX_NAMES]) + " and more" * (len(parts) > _MAX_NAMES)
        raise InputError(f"{option}: the network has no {pattern!r}; it has {listed}, and their own parts")
    return names


def parameter_groups(network: nn.Module, rates: Mapping[str, float] | None) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer: all trained weights, grouped by learning rate.

    Of the patterns in `rates`, the last that matches a weight counts; other weights have the optimizer's own rate.
    """
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    if not trained:
        raise InputError("model.freeze: no weight is left to train; freeze less")
    chosen: dict[str, str] = {}
    for pattern, rate in (rates or {}).items():
        check_value(f"model.learning_rates: {pattern}", rate, Positive)
        names = matching_parameters(network, pattern, "model.learning_rates") & trained.keys()
        if not names:
            raise InputError(f"model.learning_rates: {pattern} is not trained; omit its rate")
        chosen |= dict.fromkeys(names, pattern)
    groups = []
    for pattern in (None, *(rates or ())):
        weights = [weight for name, weight in trained.items() if chosen.get(name) == pattern]
        if weights:
            own = {} if pattern is None or rates is None else {"lr": rates[pattern], "name": pattern}
            groups.append({"params": weights, **own})
    return groups


def make_schedule(make: LRSchedulerCallable, optimizer: Optimizer, validated: int | None) -> PlainDict:
    """Make a schedule for Lightning; an `InputError` if it changes the ratio of the groups' learning rates.

    `validated`: epochs from one validation to the next; None = validation follows steps.
    """
    before = [group["lr"] for group in optimizer.param_groups]
    scheduler = make(optimizer)
    after = [group["lr"] for group in optimizer.param_groups]
    if any(not isclose(lr * before[0], after[0] * rate) for lr, rate in zip(after, before, strict=True)):
        raise InputError(
            f"model.lr_scheduler: {type(scheduler).__name__} has one rate for all weights, and"
            " model.learning_rates has several; omit one of the two"
        )
    every = validated if isinstance(scheduler, ReduceLROnPlateau) else 1
    return {"scheduler": scheduler, "monitor": "val/loss", "frequency": every or 1}


def total_steps(steps: float) -> int:
    """The steps of a training, for schedules that go over all of them; an `InputError` if it has no end."""
    if steps == inf:
        raise InputError("--trainer.max_epochs -1: a schedule over all steps needs a number of epochs")
    return int(steps)
