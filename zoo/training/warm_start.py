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

#: The names of the rows of a weight of a model with some data; see `Task.row_names`.
RowNames: TypeAlias = Callable[[str, Tensor, DataState], "Sequence[Hashable] | None"]
#: The names of its columns; see `Task.column_names`.
ColumnNames: TypeAlias = Callable[[str, DataState, PlainDict], "Mapping[Hashable, bool] | None"]
#: The names of all rows of a weight, the positions of those that were taken, and how many of its columns, in words.
TakenRows: TypeAlias = "tuple[Sequence[Hashable], list[int], str]"


def take_weights(
    model: nn.Module, start: Start, source: str, meta: Meta, row_names: RowNames, column_names: ColumnNames
) -> set[str]:
    """Copy the weights that fit from a trained model into one that has just been made, and return their names.

    Weights of equal name and shape are taken whole; of weights whose rows have names (`Task.row_names`: words,
    characters, labels), the rows that both models have, and their columns (`Task.column_names`). The returned
    names include those of tables of words and of heads for known labels that were taken in part. `meta` describes the
    model, `source` is the name of the trained one.
    """
    own = {name: weight for name, weight in model.named_parameters() if not is_adapter(name)}
    rows: dict[str, TakenRows] = {}
    with torch.no_grad():
        for name, parameter in own.items():
            if (value := start.weights.get(plain_name(name))) is not None:
                names = (
                    row_names(name, parameter, meta.data),
                    row_names(name, value, start.meta.data),
                )
                columns, others = (column_names(name, each.data, each.extras) for each in (meta, start.meta))
                rows[name] = _take(parameter, value, *names, columns, others)
        for name, buffer in model.named_buffers():
            value = start.weights.get(name)
            if name.endswith(_BUFFERS) and value is not None and buffer.shape == value.shape:
                buffer.copy_(value)
    covered = {name for name, (names, here, _) in rows.items() if 0 < len(here) == len(names)}
    whole = {name for name in covered if not rows[name][2]}
    partly = {name: rows[name] for name in rows if rows[name][1] and name not in whole}
    if not (whole or partly):
        raise InputError(
            f"model.init_from={source}: is a {start.meta.model}, none of whose weights fit this {type(model).__name__}"
        )
    described = [part + describe_rows(name, names, here) for name, (names, here, part) in partly.items()]
    log.info("%s: taken: %s", source, "; ".join([*_summarize(whole), *described]))
    _log_others(model, start, own.keys() - whole - partly.keys(), partly)
    return covered | {name for name in partly if name.endswith(TABLES)}


def _take(
    parameter: Tensor,
    value: Tensor,
    names: Sequence[Hashable] | None,
    others: Sequence[Hashable] | None,
    columns: Mapping[Hashable, bool] | None,
    other_columns: Mapping[Hashable, bool] | None,
) -> TakenRows:
    """Copy the rows and columns that both models have."""
    if names is None or others is None:  # a single row, which must have the same shape
        names, others, parameter, value = [parameter.shape], [value.shape], parameter[None], value[None]
    rows = shared_rows(names, others)
    common = shared_rows([*(columns or ())], [*(other_columns or ())])
    if not rows or (parameter.shape[1:] != value.shape[1:] if columns is None else not common):
        return names, [], ""
    here, there = (torch.tensor(side, device=parameter.device) for side in zip(*rows, strict=True))
    if columns is None or parameter.ndim == 1:  # a bias belongs to the columns of its weight
        parameter[here] = value[there]
        return names, here.tolist(), ""
    to, source = (torch.tensor(side, device=parameter.device) for side in zip(*common, strict=True))
    parameter[here] *= torch.tensor([*columns.values()], device=parameter.device)
    parameter[here[:, None], to] = value[there[:, None], source]
    part = f"{len(common):,} of {len(columns):,} columns of " if len(common) < len(columns) else ""
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
