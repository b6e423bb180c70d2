"""The weighted sum of the members, and classes that only the memory has: labels of rows that were added later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from zoo.ensemble.outputs import Outputs, Votes
from zoo.ensemble.pool import Pool
from zoo.layers.vote import count_votes

#: The score of a class that a text cannot have.
NEVER = -1e4

#: Name of the contribution of the option `class_weight`.
CLASS_WEIGHT = "class weight"

#: Name of the contribution that weighs the votes for new classes against the old classes.
BY_MEMORY_ALONE = "known by memory alone"


def rarity_of(target: NDArray[np.int64] | None, num_classes: int, num_new: int) -> Tensor:
    """Factors [N] of the votes for new classes: classes of few rows are rarely retrieved.

    `target` has the classes of all rows of the memory. A factor is the root of the missing share: the whole of it would
    take too many texts away from the old classes.
    """
    if target is None:
        return torch.ones(num_new)
    counts = np.bincount(target[target >= 0], minlength=num_classes + num_new)
    old, new = counts[:num_classes].mean(), counts[num_classes:]
    rarity = np.sqrt(np.maximum(old, 1) / np.maximum(new, 1))
    return torch.from_numpy(np.maximum(rarity, 1.0)).float()


def combine(
    outputs: Mapping[str, Outputs], pool: Pool, rarity: Tensor, blank: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits [B, C + N] of the members with a weight, and contributions that add up to them.

    `rarity` has a factor of each of the N new classes, see `rarity_of`. `blank` is 0 [B, C]. Of sets: [B, 2, C + N].
    """
    weights = pool.weights["all"]
    logs = {name: log for name, log in pool.calibrate(outputs).items() if weights.get(name)}
    parts = {name: weights[name] * (log - log.mean(dim=1, keepdim=True)) for name, log in logs.items()}
    if pool.class_weights:
        parts[CLASS_WEIGHT] = blank + blank.new_tensor(pool.class_weights)
    logits = sum(parts.values(), start=blank)
    if len(rarity) == 0:
        return logits, parts
    if blank.ndim == 3:
        return _with_new_labels(logits, parts, votes_of(outputs), pool, len(rarity))
    return with_new_classes(logits, parts, votes_of(outputs), pool, rarity)


def _with_new_labels(
    logits: Tensor, contributions: Mapping[str, Tensor], votes: Mapping[str, Votes], pool: Pool, num_new: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Extend logits [B, 2, C] and contributions by N labels of which the votes alone know."""
    num_labels, weights = logits.shape[2], pool.weights.get("memory", {})
    parts = {name: functional.pad(part, (0, num_new)) for name, part in contributions.items()}
    new = logits.new_zeros(len(logits), 2, num_new)
    new[:, 0] = -NEVER  # without a vote
    for place, (name, vote) in enumerate(each for each in votes.items() if weights.get(each[0])):
        logs = replace(vote, num_classes=num_labels + num_new).log_probabilities(pool.calibrations[name])
        own = weights[name] * (logs - logs.mean(dim=1, keepdim=True))[:, :, num_labels:]
        new = own if place == 0 else new + own
        part = parts.get(name, functional.pad(torch.zeros_like(logits), (0, num_new)))
        parts[name] = torch.cat([part[:, :, :num_labels], own], dim=2)
    return torch.cat([logits, new], dim=2), parts


def votes_of(outputs: Mapping[str, Outputs]) -> dict[str, Votes]:
    """The outputs of the members that vote."""
    return {name: output for name, output in outputs.items() if isinstance(output, Votes)}


def with_new_classes(
    logits: Tensor, contributions: dict[str, Tensor], votes: Mapping[str, Votes], pool: Pool, rarity: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Extend logits [B, C] and contributions that add up to them by N classes that only the memory has.

    The votes alone decide how probable a new class is; the rest is divided among the old classes as before:
    p(new) = q(new), p(old) = (1 - q(any new)) p'(old). A new class that none of a text's memories has is impossible.
    Each contribution has the mean 0 over the possible classes.
    """
    num_classes, num_new = logits.shape[1], len(rarity)
    number, weights = num_classes + num_new, pool.weights.get("memory", {})
    votes = {name: replace(each, num_classes=number) for name, each in votes.items() if weights.get(name)}
    if not votes:
        never = logits.new_full((len(logits), num_new), NEVER)
        share = never / len(contributions)
        parts = {name: torch.cat([part, share], dim=1) for name, part in contributions.items()}
        return torch.cat([logits, never], dim=1), parts
    retrieved = logits.new_zeros(len(logits), number)
    weighted: dict[str, Tensor] = {}
    for name, each in votes.items():
        retrieved += count_votes(each.mask.float(), each.target, each.num_classes)
        weighted[name] = weights[name] * each.log_probabilities(pool.calibrations[name])
    together = torch.stack(list(weighted.values())).sum(dim=0)
    share = together + torch.cat([torch.ones(num_classes), rarity]).log().to(logits.device)
    old, new = slice(0, num_classes), slice(num_classes, None)
    share[:, new] = share[:, new].masked_fill(retrieved[:, new] == 0, NEVER)
    share = share.log_softmax(dim=1)
    rest = share[:, old].logsumexp(dim=1, keepdim=True) - logits.logsumexp(dim=1, keepdim=True)
    blank = logits.new_zeros(len(logits), num_new)
    parts = {name: torch.cat([part, blank], dim=1) for name, part in contributions.items()}
    for name, vote in weighted.items():
        old_part = parts.get(name, torch.zeros_like(vote))[:, old]
        parts[name] = torch.cat([old_part, vote[:, new]], dim=1)
    parts[BY_MEMORY_ALONE] = torch.cat([rest.expand(-1, num_classes), (share - together)[:, new]], dim=1)
    is_possible = torch.cat([torch.ones_like(logits), (retrieved[:, new] > 0).to(logits)], dim=1)
    parts = {name: centered(part, is_possible) for name, part in parts.items()}
    return torch.stack(list(parts.values())).sum(dim=0), parts


def centered(part: Tensor, is_possible: Tensor) -> Tensor:
    """A contribution [B, C + N] minus its mean over the classes that are possible, 1 in a tensor of the same shape."""
    return part - (part * is_possible).sum(dim=1, keepdim=True) / is_possible.sum(dim=1, keepdim=True)
