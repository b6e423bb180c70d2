"""Which parts of a network are trained, and how fast: parts are named by shell-like patterns.

A pattern names what its modules and parameters are called in the network (`encoder`, `encoder.lstm`,
`encoder.transformer.encoder.layer.[0-3]`, `*.words`), and means all that is inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from datamodules.core.errors import InputError

#: Names that a message lists at most.
_MOST_NAMES = 40


def names_in(network: nn.Module, pattern: str) -> set[str]:
    """Names of the parameters that a pattern means."""
    return {name for name, _ in network.named_parameters() if is_named(name, pattern)}


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern means this module or parameter, or one that it is inside of."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def freeze(network: nn.Module, patterns: Iterable[str]) -> None:
    """Leave parts as they are: without gradients, and as in evaluation, without dropout.

    Args:
        network: whose parts they are.
        patterns: of their names.

    Raises:
        InputError: nothing is called so.
    """
    for pattern in patterns:
        known_names(network, pattern, "model.freeze")
        for name, parameter in network.named_parameters():
            if is_named(name, pattern):
                parameter.requires_grad_(False)
        for name, module in network.named_modules():
            if name and is_named(name, pattern):
                module.eval()


def known_names(network: nn.Module, pattern: str, option: str) -> set[str]:
    """`names_in`, of which there must be some.

    Raises:
        InputError: there is none; names those that there are.
    """
    if not (found := names_in(network, pattern)):
        # Down to the parts of parts; deeper ones only where these leave room.
        names = {
            ".".join(name.split(".")[:depth]) for depth in (1, 2) for name, _ in network.named_parameters()
        }
        shown = ", ".join(sorted(names)[:_MOST_NAMES]) + " and more" * (len(names) > _MOST_NAMES)
        raise InputError(
            f"{option}: the network has no {pattern!r}; it has {shown}, and what is inside of them"
        )
    return found


def parameter_groups(network: nn.Module, rates: Mapping[str, float] | None) -> list[dict[str, Any]]:
    """What an optimizer is made with: all that is trained, those of the same rate together.

    Args:
        network: whose weights they are.
        rates: learning rates by pattern; where several mean a weight, the last counts, and where none does, the
            optimizer's own.

    Raises:
        InputError: nothing is trained, or nothing is called as a pattern says.
    """
    trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
    if not trained:
        raise InputError("model.freeze: nothing is left to train; freeze less")
    chosen: dict[str, str] = {}
    for pattern, rate in (rates or {}).items():
        if not rate > 0:
            raise InputError(
                f"model.learning_rates: {pattern}={rate}: must be above 0; model.freeze trains nothing"
            )
        found = known_names(network, pattern, "model.learning_rates") & trained.keys()
        if not found:
            raise InputError(f"model.learning_rates: {pattern} is not trained; leave its rate out")
        chosen |= dict.fromkeys(found, pattern)
    groups = []
    for pattern in (None, *(rates or ())):
        weights = [weight for name, weight in trained.items() if chosen.get(name) == pattern]
        if weights:
            own = {} if pattern is None or rates is None else {"lr": rates[pattern], "name": pattern}
            groups.append({"params": weights, **own})
    return groups


def count_parameters(network: nn.Module) -> tuple[int, int]:
    """How many numbers are trained, and how many there are."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in network.parameters()]
    return sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
