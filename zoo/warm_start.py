"""Starting a model from another one's weights, although vocabulary and features may differ.

`--ckpt_path` resumes a run and wants the same model; `--model.init_from` takes what fits into a new one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from datamodules.errors import InputError
from zoo.checkpoints import CHECKPOINT_KEY, read_checkpoint

if TYPE_CHECKING:
    from zoo.tasks.base import Task

log = logging.getLogger("zoo")

#: How the names of parameters end that have a row for each word or character, and the list in a vocabulary
#: that names the rows.
TABLES = {".words.table": "words", ".words.char_table.weight": "characters"}


def start_from(model: Task, checkpoint: str) -> None:
    """Copy what fits from a checkpoint into a model that has just been made.

    Weights of equal name and shape are taken whole; of word and character tables, the rows that both have; of
    the classifier, the columns of the features that both have, and zero for the model's further features, so
    that it starts as a copy of the other one; unless the network has given these a meaning (`ready`). The rest
    keeps its fresh values. What was taken is logged.

    Args:
        model: with its network made.
        checkpoint: a file that `zoo fit` wrote.

    Raises:
        InputError: the file is no checkpoint, or nothing of it fits.
    """
    contents = read_checkpoint(checkpoint)
    theirs: dict[str, Tensor] = contents["state_dict"]
    state = contents[CHECKPOINT_KEY]["data"]
    # Buffers (a tuned vote) belong to the other model's memory.
    mine = dict(model.named_parameters())
    taken = []
    with torch.no_grad():
        for name, parameter in mine.items():
            if name not in theirs or name.startswith("network.classifier."):
                continue
            listed = next((key for ending, key in TABLES.items() if name.endswith(ending)), None)
            if listed is not None:
                rows = _shared_rows(model.data_state["vocabulary"][listed], state["vocabulary"][listed])
                if rows and parameter.shape[1] == theirs[name].shape[1]:
                    ours, others = (torch.tensor(side) for side in zip(*rows, strict=True))
                    parameter[ours] = theirs[name][others]
                    taken.append(f"{name} ({len(rows)} of {len(parameter)} rows)")
            elif parameter.shape == theirs[name].shape:
                parameter.copy_(theirs[name])
                taken.append(name)
        taken += _take_classifier(model, contents)
    if getattr(model.network, "freeze_encoder", False):
        fresh = [
            name
            for name in mine
            if name.startswith("network.encoder.") and not name.endswith(tuple(TABLES)) and name not in taken
        ]
        if fresh:
            raise InputError(
                f"model.init_from={checkpoint}: has no {fresh[0].removeprefix('network.')} of this shape, and"
                " model.freeze_encoder would leave it untrained; give both models the same encoder options"
            )
    if not taken:
        raise InputError(f"model.init_from={checkpoint}: none of its weights fit this model")
    log.info("%s: took %s", checkpoint, ", ".join(_in_short(taken)))


def _in_short(names: list[str]) -> list[str]:
    """The names, but one line for all weights of a transformer, of which there are hundreds."""
    part = ".transformer."
    short = [name for name in names if part not in name]
    if len(short) < len(names):
        short.insert(0, f"{len(names) - len(short)} weights of the transformer")
    return short


def _shared_rows(ours: list[str] | None, theirs: list[str] | None) -> list[tuple[int, int]]:
    position = {entry: i for i, entry in enumerate(theirs or ())}
    return [(i, position[entry]) for i, entry in enumerate(ours or ()) if entry in position]


def _take_classifier(model: Task, contents: dict[str, Any]) -> list[str]:
    theirs: dict[str, Tensor] = contents["state_dict"]
    weight = theirs.get("network.classifier.weight")
    sizes: dict[str, int] | None = getattr(model.network, "sizes", None)
    their_sizes = contents[CHECKPOINT_KEY]["feature_sizes"]
    if model.network is None or weight is None or sizes is None or their_sizes is None:
        return []
    if contents[CHECKPOINT_KEY]["data"]["labels"] != model.data_state["labels"]:
        return []
    classifier = cast(nn.Linear, model.network.classifier)
    shared = [name for name in sizes if sizes[name] == their_sizes.get(name)]
    if not shared:
        return []
    fresh = classifier.weight.clone()
    classifier.weight.zero_()
    columns, their_columns = columns_of(sizes), columns_of(their_sizes)
    for name in shared:
        classifier.weight[:, columns[name]] = weight[:, their_columns[name]]
    for name in getattr(model.network, "ready", set()) - set(shared):
        classifier.weight[:, columns[name]] = fresh[:, columns[name]]
    classifier.bias.copy_(theirs["network.classifier.bias"])
    return [f"network.classifier ({', '.join(shared)})"]


def columns_of(sizes: dict[str, int]) -> dict[str, slice]:
    """The columns of a classifier's weight that read each feature, from the features' widths in their order."""
    columns, start = {}, 0
    for name, size in sizes.items():
        columns[name] = slice(start, start + size)
        start += size
    return columns
