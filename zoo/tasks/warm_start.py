"""Starting a model from another one's weights, although vocabulary and features may differ.

`--ckpt_path` resumes a run and wants the same model; `--model.init_from` takes what fits into a new one.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from datamodules.errors import InputError
from zoo.tasks.checkpoint import CHECKPOINT_KEY, read_checkpoint

log = logging.getLogger("zoo")

#: How the names of parameters end that have a row for each word or character, and the list in a vocabulary
#: that names the rows.
TABLES = {".words.table": "words", ".words.char_table.weight": "characters"}


def start_from(model: Any, checkpoint: str) -> None:
    """Copy what fits from a checkpoint into a model that has just been made.

    Weights of equal name and shape are taken whole; of word and character tables, the rows that both have; of the
    head, what the model itself takes (`Task.take_head`). The rest keeps its fresh values. What was taken is logged.

    Args:
        model: a `Task` with its network made.
        checkpoint: a file that `zoo fit` wrote.

    Raises:
        InputError: the file is no checkpoint, nothing of it fits, what is not to be trained would stay fresh, or
            rows that it was trained on are to be validated.
    """
    contents = read_checkpoint(checkpoint)
    theirs: dict[str, Tensor] = contents["state_dict"]
    state = contents[CHECKPOINT_KEY]["data"]
    if model.data is not None:
        model.data.check_split(state, "validation", f"model.init_from={checkpoint}")
    # Buffers (a tuned vote) belong to the other model's memory.
    mine = dict(model.named_parameters())
    taken = []
    with torch.no_grad():
        for name, parameter in mine.items():
            if name not in theirs or (model.head is not None and name.startswith(model.head)):
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
        taken += model.take_head(contents)
    frozen = model.frozen_part
    fresh = [
        name
        for name in mine
        if frozen and name.startswith(frozen) and not name.endswith(tuple(TABLES)) and name not in taken
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
