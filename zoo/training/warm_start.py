"""Start a model from another one's weights, although vocabulary, labels and features may differ.

`--ckpt_path` resumes a run and needs the same model; `--model.init_from` takes what fits into a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.core.types import PlainDict
from datamodules.state import DataState
from zoo.layers.lora import is_adapter, plain_name
from zoo.model_folder.meta import Meta
from zoo.training.checkpoints import Start

log = logging.getLogger("zoo")

#: Name endings of tables in which a fresh row among taken ones is a word or a character like any unknown one.
TABLES = (".words.table", ".char_table.weight")
#: Name endings of buffers that belong to the weights next to them; other buffers belong to a model's memory.
_BUFFERS = (".running_mean", ".running_var", ".num_batches_tracked")
#: Number of rows up to which the log lists their names, such as labels.
FEW_ROWS = 20

#: The names of the rows of a weight, and of its columns; see `Task.row_names` and `Task.column_names`.
RowNames: TypeAlias = "Sequence[Hashable] | None"
ColumnNames: TypeAlias = "Mapping[Hashable, bool] | None"
#: The names of all rows of a weight, the positions of those that were taken, and how many of its columns, in words.
TakenRows: TypeAlias = "tuple[Sequence[Hashable], list[int], str]"


def take_weights(
    model: nn.Module,
    start: Start,
    source: str,
    meta: Meta,
    rows: Callable[[str, Tensor, DataState], RowNames],
    columns: Callable[[str, DataState, PlainDict], ColumnNames],
) -> set[str]:
    """Copy the weights that fit from a trained model into one that has just been made, and return their names.

    Weights of equal name and shape are taken whole; of weights whose rows have names (`Task.row_names`: words,
    characters, labels), the rows that both models have, and their columns (`Task.column_names`). The returned names
    include those of tables of words that were taken in part. `meta` describes the model, `source` is the name of the
    trained one, and `rows` and `columns` are these methods.
    """
    own = {name: weight for name, weight in model.named_parameters() if not is_adapter(name)}
    taken: dict[str, TakenRows] = {}
    with torch.no_grad():
        for name, parameter in own.items():
            if (value := start.weights.get(plain_name(name))) is not None:
                of_rows = rows(name, parameter, meta.data), rows(name, value, start.meta.data)
                of_columns = [columns(name, each.data, each.extras) for each in (meta, start.meta)]
                taken[name] = _take(parameter, value, of_rows, of_columns)
        for name, buffer in model.named_buffers():
            value = start.weights.get(name)
            if name.endswith(_BUFFERS) and value is not None and buffer.shape == value.shape:
                buffer.copy_(value)
    whole = {name for name, (names, here, part) in taken.items() if 0 < len(here) == len(names) and not part}
    partly = {name: taken[name] for name in taken if taken[name][1] and name not in whole}
    if not (whole or partly):
        raise InputError(
            f"model.init_from={source}: is a {start.meta.model}, none of whose weights fit this {type(model).__name__}"
        )
    described = [part + describe_rows(name, names, here) for name, (names, here, part) in partly.items()]
    log.info("%s: taken: %s", source, "; ".join([*_summarize(whole), *described]))
    _log_others(model, start, own.keys() - whole - partly.keys(), partly)
    return whole | {name for name in partly if name.endswith(TABLES)}


def _take(
    parameter: Tensor, value: Tensor, rows: Sequence[RowNames], columns: Sequence[ColumnNames]
) -> TakenRows:
    """Copy the rows and columns that both models have."""
    (names, others), (own, other) = rows, columns
    if names is None or others is None:  # a single row, which must have the same shape
        names, others, parameter, value = [parameter.shape], [value.shape], parameter[None], value[None]
    shared, common = shared_rows(names, others), shared_rows([*(own or ())], [*(other or ())])
    if not shared or (parameter.shape[1:] != value.shape[1:] if own is None else not common):
        return names, [], ""
    here, there = (torch.tensor(side, device=parameter.device) for side in zip(*shared, strict=True))
    if own is None or parameter.ndim == 1:  # a bias belongs to the columns of its weight
        parameter[here] = value[there]
        return names, here.tolist(), ""
    to, source = (torch.tensor(side, device=parameter.device) for side in zip(*common, strict=True))
    parameter[here] *= torch.tensor([*own.values()], device=parameter.device)
    parameter[here[:, None], to] = value[there[:, None], source]
    part = f"{len(common):,} of {len(own):,} columns of " if len(common) < len(own) else ""
    return names, here.tolist(), part


def _log_others(model: nn.Module, start: Start, new: set[str], partly: Mapping[str, TakenRows]) -> None:
    """Log the weights that are new, the rows that are new in known weights, and the weights that were not used."""
    fresh = [
        describe_rows(name, names, sorted({*range(len(names))} - {*here}))
        for name, (names, here, _) in partly.items()
        if len(here) < len(names)
    ]
    if new or fresh:
        log.info("new here: %s", "; ".join([*_summarize(new), *fresh]))
    # A state dict has a weight that two modules share twice.
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)} - new
    used = known | {name for name, _ in model.named_buffers()}
    if unused := start.weights.keys() - {plain_name(name) for name in used}:
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
