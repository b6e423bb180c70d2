"""The state of the data of a trained model, and the options that a later command may change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from datamodules.base import AnyDataModule


@dataclass(frozen=True)
class DataState:
    """Everything that prepares new rows for a trained model, as plain values.

    `DataModule.state` makes it. Checkpoints keep it as it is, and model folders without names of files. A data module
    takes it in `use_state`; commands on the memory read its options.
    """

    #: class name of the data module.
    kind: str
    options: PlainDict
    #: see `Retriever.describe`.
    retriever: PlainDict
    #: whether the user named the memory.
    memory_is_users: bool
    #: arguments of `read_table` for rows of the memory.
    memory_columns: PlainDict
    #: checksums of the contents of the files that the options name.
    files: PlainDict
    vocabulary: PlainDict
    #: keys of the training rows, see `Duplicates.describe_seen`.
    seen: str | None
    #: see `DataModule.learn`.
    facts: PlainDict


def check_resumed(now: DataState, before: DataState) -> None:
    """Raise an `InputError` that names the files with other contents than `before` the run is resumed."""
    changed = [
        f"data.{name}={now.options[name]}"
        for name, contents in before.files.items()
        if not name.startswith("test_") and contents != now.files[name]
    ]
    if changed:
        raise InputError(
            f"{'; '.join(changed)}: other contents than when the run was started; restore them, or start a new run from"
            " its weights with --model.init_from"
        )


def check_split(data: AnyDataModule, state: DataState, name: str, source: str) -> None:
    """Raise an `InputError` if a split takes rows that a model of this state, named by `source`, was trained on."""
    options, trained = data.options.to_dict(), state.options
    table = data.options.table_option.format(split="train")
    if not data.is_split_off(name) or data.file_contents[table] != state.files.get(table):
        return
    different = [
        option
        for option in data.options.splitting
        if option in options and option in trained and options[option] != trained[option]
    ]
    # Of a model with a validation table, no rows were split off.
    if different and (name != "validation" or state.files.get("validation_file") is None):
        values = " and ".join(f"data.{option}={options[option]}" for option in different)
        expected = " and ".join(f"{option}={trained[option]}" for option in different)
        raise InputError(
            f"{values}: {source} was trained with {expected}, so it has seen rows that would now be split off; use the"
            f" same values, or other rows (--data.{name}_file)"
        )


def resolved(table: object) -> object:
    """The name of a table; equal for two names of one file."""
    return str(Path(table).resolve()) if isinstance(table, str) and Path(table).exists() else table
