"""The state of the data in a checkpoint, and the options that a later command may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.readers import HUB
from datamodules.memory_source import MemoryLocation
from datamodules.options import DataOptions

if TYPE_CHECKING:
    from datamodules.base import DataModule


@dataclass(frozen=True)
class DataState:
    """Everything that prepares new rows for a trained model; plain values but for the memory's location."""

    #: class name of the data module.
    kind: str
    options: PlainDict
    retriever: PlainDict
    memory: MemoryLocation | None
    #: contents of the files that the options name.
    files: PlainDict
    vocabulary: PlainDict
    #: keys of the training rows, see `Duplicates.describe_seen`.
    seen: str | None
    #: see `DataModule.learn`.
    facts: PlainDict

    def to_dict(self) -> PlainDict:
        """Plain values."""
        return {**vars(self), "memory": None if self.memory is None else self.memory.to_dict()}

    @property
    def places(self) -> PlainDict:
        """Places outside of the model, for its signature."""
        memory = None if self.memory is None else self.memory.to_dict()
        return {"options": self.options, "retriever": self.retriever, "memory": memory}

    @classmethod
    def from_dict(cls, described: PlainDict) -> DataState:
        """The state that `to_dict` described."""
        for name in ("options", "retriever", "files", "vocabulary", "facts"):
            if not isinstance(described[name], dict):
                raise TypeError(f"the {name} of the data are a {type(described[name]).__name__}")
        return cls(**{**described, "memory": MemoryLocation.from_dict(described["memory"])})


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


def check_split(data: DataModule, state: DataState, name: str, source: str) -> None:
    """Raise an `InputError` if a split takes rows that a model of this state, named by `source`, was trained on."""
    options, trained = data.options.to_dict(), state.options
    table = data.options.table_option.format(split="train")
    if not data.is_split_off(name) or resolved(options[table]) != resolved(trained.get(table)):
        return
    different = [
        option
        for option in data.options.splitting
        if option in options and option in trained and options[option] != trained[option]
    ]
    if different and (name != "validation" or trained.get("validation_file") is None):
        values = " and ".join(f"data.{option}={options[option]}" for option in different)
        expected = " and ".join(f"{option}={trained[option]}" for option in different)
        raise InputError(
            f"{values}: {source} was trained with {expected}, so it has seen rows that would now be split off; use the"
            f" same values, or other rows (--data.{name}_file)"
        )


def options_to_evaluate(
    state: DataState, options: type[DataOptions], command: str, given: Mapping[str, str]
) -> PlainDict:
    """Options to evaluate a model, overridden by those `given`; an `InputError` if its validation rows are gone."""
    values = dict(state.options)
    tests = [name for name in options.files if name.startswith("test_")]
    if "test_split" in values and any(given.get(name) for name in tests):
        values["test_split"] = None  # the file replaces it
    if command == "test":
        return {**values, **dict.fromkeys(tests)}
    if values.get("validation_file") or "train_file" not in values or given.get("validation_file"):
        return values
    train_file = values["train_file"]
    files = [train_file] if isinstance(train_file, str) else train_file or []
    # A file that the user gives is read, or found missing, like any other.
    missing = [file for file in files if not file.startswith(HUB) and not Path(file).exists()]
    if missing and not given.get("train_file"):
        raise InputError(
            f"{train_file}: no such file, and the validation rows were split off it; name its new path"
            " (--data.train_file), or other rows (--data.validation_file)"
        )
    return values


def resolved(table: object) -> object:
    """The name of a table; equal for two names of one file."""
    return str(Path(table).resolve()) if isinstance(table, str) and Path(table).exists() else table
