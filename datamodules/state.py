"""The state of the data of a trained model, and the options that a later command may change."""

from __future__ import annotations

from dataclasses import dataclass

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.options import DataOptions


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
    #: keys of the training rows, see `encode_keys`.
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
        problem = "other contents than when the run was started"
        advice = "restore them, or start a new run from its weights with --model.init_from"
        raise InputError(f"{'; '.join(changed)}: {problem}; {advice}")


def check_split(options: DataOptions, files: PlainDict, trained: DataState, name: str, source: str) -> None:
    """Raise an `InputError` if a split takes rows that a trained model, named by `source`, was trained on.

    `files` are checksums of the files that the options name, see `DataModule.file_contents`.
    """
    table = options.table_option.format(split="train")
    if not options.is_split_off(name) or files[table] != trained.files.get(table):
        return
    values = options.to_dict()
    shared = [option for option in options.splitting if option in values and option in trained.options]
    different = [option for option in shared if values[option] != trained.options[option]]
    # Of a model with a validation table, no rows were split off.
    if different and (name != "validation" or trained.files.get("validation_file") is None):
        given = " and ".join(f"data.{option}={values[option]}" for option in different)
        expected = " and ".join(f"{option}={trained.options[option]}" for option in different)
        problem = f"{source} was trained with {expected}, so it has seen rows that would now be split off"
        raise InputError(f"{given}: {problem}; use the same values, or other rows (--data.{name}_file)")
