"""Starting a model from another one's weights, although vocabulary, labels and features may differ.

`--ckpt_path` resumes a run and wants the same model; `--model.init_from` takes what fits into a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from zoo.layers.lora import is_adapter, plain_name, without_adapters
from zoo.saving.checkpoint import CHECKPOINT_KEY, read_checkpoint

log = logging.getLogger("zoo")

#: How the names of tables end in which a fresh row beside taken ones is a word or a character like any unknown one.
TABLES = (".words.table", ".char_table.weight")
#: How the names of buffers end that belong to the weights beside them; others (a tuned vote) to a model's memory.
_OF_WEIGHTS = (".running_mean", ".running_var", ".num_batches_tracked")
#: Rows that are named one by one in the log, such as labels.
FEW_ROWS = 20


def numbered(numbers: Iterable[int], context: Any) -> list[Hashable]:
    """Names of rows that stand for numbers, which mean the same only in the same context.

    Args:
        numbers: of each row.
        context: plain values, such as the characters in the order of their numbers.
    """
    mark = fingerprint_of({"context": context})
    return [(mark, number) for number in numbers]


def start_from(model: Any, checkpoint: str, is_told: bool = True) -> set[str]:
    """Copy what fits from a checkpoint into a model that has just been made, and log what was taken and what is new.

    Weights of equal name and shape are taken whole; of those whose rows have names (`Task.row_names`: words,
    characters, labels), the rows that both have; of a head, what the model itself takes (`Task.take_head`). The rest
    keeps its fresh values. Adapters of a transformer are added to its weights.

    Args:
        model: a `Task` with its network made.
        checkpoint: of another model, or what stands for one.
        is_told: log what was taken.

    Returns:
        The weights that were taken whole, and the tables of words that were taken in part.

    Raises:
        InputError: the file is no checkpoint, nothing of it fits, or rows that it was trained on are to be validated.
    """
    contents = read_checkpoint(checkpoint)
    theirs: dict[str, Tensor] = {
        name: value.to(model.device)
        for name, value in without_adapters(contents["state_dict"]).items()
        if isinstance(value, Tensor)
    }
    contents["state_dict"] = theirs
    state = contents[CHECKPOINT_KEY]["data"]
    if model.data is not None:
        model.data.check_split(state, "validation", f"model.init_from={checkpoint}")
    mine = {name: weight for name, weight in model.named_parameters() if not is_adapter(name)}
    taken = Taken(set(), {}, [], [])
    with torch.no_grad():
        for name, parameter in mine.items():
            value = theirs.get(plain_name(name))
            if value is not None and not (model.head is not None and name.startswith(model.head)):
                _take(model, name, parameter, value, state, taken)
        for name, buffer in model.named_buffers():
            if name.endswith(_OF_WEIGHTS) and name in theirs and buffer.shape == theirs[name].shape:
                buffer.copy_(theirs[name])
        if head := model.take_head(contents):
            taken.head.extend(head)
            taken.in_head.extend(name for name in mine if name.startswith(model.head))
    if not (taken.whole or taken.rows or taken.head):
        their_model = contents[CHECKPOINT_KEY]["model"]
        raise InputError(
            f"model.init_from={checkpoint}: of a {their_model}, none of whose weights fit this {type(model).__name__}"
        )
    if is_told:
        _tell(checkpoint, model, mine, theirs, taken)
    tables = {name for name in taken.rows if name.endswith(TABLES)}
    heads = {name for name in taken.in_head if _has_all_rows(model, name, mine[name], state)}
    return taken.whole | tables | heads


class Taken(NamedTuple):
    """What a model has of another one."""

    #: names of weights.
    whole: set[str]
    #: name of a weight -> what its rows are called, and the places of those that were taken.
    rows: dict[str, tuple[Sequence[Hashable], list[int]]]
    #: what the model itself took, for people; and the weights that it is of.
    head: list[str]
    in_head: list[str]


def _take(
    model: Any, name: str, parameter: Tensor, value: Tensor, state: Mapping[str, Any], taken: Taken
) -> None:
    """Copy a weight of the other model, or the rows that both have, and note it."""
    ours, others = (
        model.row_names(name, weight, data)
        for weight, data in ((parameter, model.data_state), (value, state))
    )
    if ours is None or others is None:
        if parameter.shape == value.shape:
            parameter.copy_(value)
            taken.whole.add(name)
        return
    rows = shared_rows(ours, others)
    if not rows or parameter.shape[1:] != value.shape[1:]:
        return
    here, there = (list(side) for side in zip(*rows, strict=True))
    parameter[torch.tensor(here)] = value[torch.tensor(there)]
    if len(here) == len(ours):
        taken.whole.add(name)
    else:
        taken.rows[name] = ours, here


def _tell(
    checkpoint: str, model: Any, mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], taken: Taken
) -> None:
    """Log what was taken, what is new and what was left."""
    known = taken.whole | taken.rows.keys() | set(taken.in_head)
    new = [name for name in mine if name not in known]
    rows = [_rows_of(name, names, here) for name, (names, here) in taken.rows.items()]
    fresh = [
        _rows_of(name, names, sorted({*range(len(names))} - {*here}))
        for name, (names, here) in taken.rows.items()
    ]
    # A state dict has a weight that two modules share twice.
    known |= {name for name, _ in model.named_parameters(remove_duplicate=False)} - mine.keys()
    known |= {name for name, _ in model.named_buffers()}
    left = theirs.keys() - {plain_name(name) for name in known}
    log.info("%s: taken: %s", checkpoint, "; ".join([*_in_short(taken.whole, mine), *rows, *taken.head]))
    if new or fresh:
        log.info("new here: %s", "; ".join([*_in_short(new, mine), *fresh]))
    if left:
        log.info("left there: %s", "; ".join(_in_short(left, theirs)))


def _has_all_rows(model: Any, name: str, weight: Tensor, state: Mapping[str, Any]) -> bool:
    """Whether another model, of this data's state, has each row of a weight."""
    ours, theirs = (model.row_names(name, weight, data) or () for data in (model.data_state, state))
    return set(ours) <= set(theirs)


def check_frozen(model: Any, taken: Collection[str]) -> None:
    """Refuse to freeze what is fresh: no training would ever change it.

    Args:
        model: a `Task` with its network made.
        taken: the weights that are another model's.

    Raises:
        InputError: names such a part.
    """
    if not model.frozen:
        return
    given = {name for name, parameter in model.named_parameters() if ".transformer." in name}
    if model.data is not None and model.data.word_vectors() is not None:
        given |= {name for name, _ in model.named_parameters() if name.endswith(".words.table")}
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    fresh = [
        name
        for name, parameter in model.named_parameters()
        if id(parameter) not in trained and name not in given and name not in taken
    ]
    if not fresh:
        return
    start = model.options.init_from
    if start is None:
        raise InputError(
            f"model.freeze: the weights of {_short(fresh[0])} are fresh, so nothing would ever train them; name a"
            " trained model with model.init_from"
        )
    raise InputError(
        f"model.init_from={start}: has no {_short(fresh[0])} of this shape, and freezing would leave it untrained; give"
        " both models the same options, or freeze less"
    )


def shared_rows(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Places of what two lists have in common, in the first and in the second."""
    position = {entry: place for place, entry in enumerate(theirs)}
    return [(place, position[entry]) for place, entry in enumerate(ours) if entry in position]


def _rows_of(name: str, names: Sequence[Hashable], rows: Sequence[int]) -> str:
    """Some rows of a weight: by their names where it has few."""
    if len(names) <= FEW_ROWS and all(isinstance(one, str) for one in names):
        return f"{_short(name)} for {', '.join(str(names[row]) for row in rows)}"
    return f"{len(rows):,} of {len(names):,} rows of {_short(name)}"


def _short(name: str) -> str:
    return plain_name(name).removeprefix("network.")


def _in_short(names: Iterable[str], universe: Mapping[str, Any]) -> list[str]:
    """Names of weights; those of a module of which all are named as the module."""
    chosen, said = set(names), dict[str, None]()
    for name in universe:
        if name not in chosen:
            continue
        parts = name.split(".")
        for end in range(2, len(parts) + 1):
            prefix = ".".join(parts[:end])
            inside = (other for other in universe if other == prefix or other.startswith(prefix + "."))
            if all(other in chosen for other in inside):
                break
        # Not to be taken for a word of the sentence: AMVLSTM has a parameter `none`.
        said[_short(prefix) if "." in _short(name) else f"parameter {_short(prefix)}"] = None
    return list(said)
