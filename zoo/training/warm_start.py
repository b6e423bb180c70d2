"""Start a model from another one's weights, although vocabulary, labels and features may differ.

`--ckpt_path` resumes a run and needs the same model; `--model.init_from` takes what fits into a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.state import DataState
from zoo.layers.lora import is_adapter, plain_name
from zoo.training.checkpoints import Start

log = logging.getLogger("zoo")

#: Name endings of tables in which a fresh row among taken ones is a word or a character like any unknown one.
TABLES = (".words.table", ".char_table.weight")
#: Name endings of buffers that belong to the weights next to them; other buffers belong to a model's memory.
_BUFFERS = (".running_mean", ".running_var", ".num_batches_tracked")
#: Number of rows up to which the log lists their names, such as labels.
FEW_ROWS = 20

#: The names of the rows of a weight of a model with some data; see `Task.row_names`.
RowNames: TypeAlias = Callable[[str, Tensor, DataState], "Sequence[Hashable] | None"]


@runtime_checkable
class TransfersHead(Protocol):
    """A model that takes parts of another model's head by itself."""

    #: prefix of the names of the head's weights.
    head: str

    def take_head(self, start: Start) -> list[str]:
        """Take the parts of another model's head that fit, and return their descriptions for the log."""


class _Taken(NamedTuple):
    """The parts of another model that were taken."""

    #: names of weights that were taken whole.
    whole: set[str]
    #: name of a weight -> names of its rows, and positions of the rows that were taken.
    rows: dict[str, tuple[Sequence[Hashable], list[int]]]
    #: descriptions of the parts of the head, and the names of its weights.
    head: list[str]
    head_weights: list[str]


def take_weights(
    model: nn.Module, start: Start, source: str, data: DataState, row_names: RowNames
) -> set[str]:
    """Copy the weights that fit from a trained model into one that has just been made, and return their names.

    Weights of equal name and shape are taken whole; of weights whose rows have names (`Task.row_names`: words,
    characters, labels), the rows that both models have; of a head, what the model takes itself (`TransfersHead`).
    The returned names include those of word tables that were taken in part. `data` is that of the model, `source` the
    name of the trained one.
    """
    own = {name: weight for name, weight in model.named_parameters() if not is_adapter(name)}
    taken = _Taken(set(), {}, [], [])
    head = model.head if isinstance(model, TransfersHead) else None
    with torch.no_grad():
        for name, parameter in own.items():
            value = start.weights.get(plain_name(name))
            if value is not None and not (head is not None and name.startswith(head)):
                names = row_names(name, parameter, data), row_names(name, value, start.meta.data)
                _take(name, parameter, value, names, taken)
        for name, buffer in model.named_buffers():
            value = start.weights.get(name)
            if name.endswith(_BUFFERS) and value is not None and buffer.shape == value.shape:
                buffer.copy_(value)
        if isinstance(model, TransfersHead) and (parts := model.take_head(start)):
            taken.head.extend(parts)
            taken.head_weights.extend(name for name in own if name.startswith(model.head))
    if not (taken.whole or taken.rows or taken.head):
        raise InputError(
            f"model.init_from={source}: is a {start.meta.model}, none of whose weights fit this {type(model).__name__}"
        )
    _log(source, model, {*own}, {*start.weights}, taken)
    tables = {name for name in taken.rows if name.endswith(TABLES)}
    names_in = {
        name: [set(row_names(name, own[name], each) or ()) for each in (data, start.meta.data)]
        for name in taken.head_weights
    }
    return taken.whole | tables | {name for name, (rows, others) in names_in.items() if rows <= others}


def _take(
    name: str,
    parameter: Tensor,
    value: Tensor,
    row_names: tuple[Sequence[Hashable] | None, Sequence[Hashable] | None],
    taken: _Taken,
) -> None:
    """Copy a weight, or the rows that both models have, and note it."""
    names, other_names = row_names
    if names is None or other_names is None:
        if parameter.shape == value.shape:
            parameter.copy_(value)
            taken.whole.add(name)
        return
    rows = shared_rows(names, other_names)
    if not rows or parameter.shape[1:] != value.shape[1:]:
        return
    here, there = (list(side) for side in zip(*rows, strict=True))
    parameter[torch.tensor(here)] = value[torch.tensor(there)]
    if len(here) == len(names):
        taken.whole.add(name)
    else:
        taken.rows[name] = names, here


def _log(source: str, model: nn.Module, own: set[str], other: set[str], taken: _Taken) -> None:
    """Log the weights that were taken, those that are new and those that were not used."""
    known = taken.whole | taken.rows.keys() | set(taken.head_weights)
    new = [name for name in own if name not in known]
    rows = [describe_rows(name, names, here) for name, (names, here) in taken.rows.items()]
    fresh = [
        describe_rows(name, names, sorted({*range(len(names))} - {*here}))
        for name, (names, here) in taken.rows.items()
    ]
    # A state dict has a weight that two modules share twice.
    known |= {name for name, _ in model.named_parameters(remove_duplicate=False)} - own
    known |= {name for name, _ in model.named_buffers()}
    unused = other - {plain_name(name) for name in known}
    log.info("%s: taken: %s", source, "; ".join([*_summarize(taken.whole), *rows, *taken.head]))
    if new or fresh:
        log.info("new here: %s", "; ".join([*_summarize(new), *fresh]))
    if unused:
        log.info("not used: %s", "; ".join(_summarize(unused)))


def check_frozen(
    model: nn.Module, taken: Collection[str], init_from: str | None, has_word_vectors: bool
) -> None:
    """Raise an `InputError` if weights are frozen that were not taken from another model, and so never trained."""
    given = (".transformer.", ".words.table") if has_word_vectors else (".transformer.",)
    fresh = [
        name
        for name, parameter in model.named_parameters()
        if not (parameter.requires_grad or name in taken or any(part in name for part in given))
    ]
    if fresh and init_from is None:
        raise InputError(
            f"model.freeze: the weights of {_short(fresh[0])} are fresh, so nothing would ever train them; name a"
            " trained model with model.init_from"
        )
    if fresh:
        raise InputError(
            f"model.init_from={init_from}: has no {_short(fresh[0])} of this shape, and freezing would leave it"
            " untrained; give both models the same options, or freeze less"
        )


def shared_rows(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the positions of the common entries of two lists, in the first and in the second."""
    position = {entry: index for index, entry in enumerate(second)}
    return [(index, position[entry]) for index, entry in enumerate(first) if entry in position]


def numbered(numbers: Iterable[int], context: object) -> list[Hashable]:
    """Return names of rows for numbers whose meaning depends on a context of plain values, such as a vocabulary."""
    fingerprint = fingerprint_of({"context": context})
    return [(fingerprint, number) for number in numbers]


def describe_rows(name: str, names: Sequence[Hashable], rows: Sequence[int]) -> str:
    """Describe rows of a weight, by their names if it has few."""
    if len(names) <= FEW_ROWS and all(isinstance(entry, str) for entry in names):
        return f"{_short(name)} for {', '.join(str(names[row]) for row in rows)}"
    return f"{len(rows):,} of {len(names):,} rows of {_short(name)}"


def _short(name: str) -> str:
    return plain_name(name).removeprefix("network.")


def _summarize(names: Iterable[str]) -> list[str]:
    """Return names of weights, cut to two levels of modules."""
    return sorted({".".join(_short(name).split(".")[:2]) for name in names})
