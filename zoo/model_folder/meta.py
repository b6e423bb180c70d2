"""A trained model without its weights: `model.json` and `vocabulary.json` of a model folder."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from pathlib import PurePosixPath
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import PlainDict
from datamodules.state import DataState

_ADVICE = "it is damaged, or of another version of the zoo: copy or download the folder again"


@dataclass(frozen=True)
class Meta:
    """A trained model without its weights, as plain values.

    A `Model` describes itself by it. Checkpoints keep it as it is, and model folders without names of files. Whoever
    makes the model again, or works on its memory alone, reads it.
    """

    #: class name.
    model: str
    #: constructor arguments, without optimizer and schedule.
    options: PlainDict
    #: fields of the description of the data.
    spec: PlainDict
    data: DataState
    #: configuration of the transformer whose weights the model has.
    transformer_config: PlainDict | None = None
    #: further values of the class.
    extras: PlainDict = field(default_factory=dict)
    #: see `Model`.
    fits_weights: bool = False
    takes_new_labels: bool = False

    def to_dict(self) -> PlainDict:
        """Return plain values, of which `parse` makes the description again."""
        return {**vars(self), "data": dict(vars(self.data))}

    @classmethod
    def parse(cls, values: object, place: str) -> Meta:
        """Return what `to_dict` described; raise an `InputError` that names the place of a wrong value."""
        checked = _checked(values, cls, place)
        data = _checked(checked["data"], DataState, f"{place}: data")
        return cls(**{**checked, "data": DataState(**data)})

    def check_inside(self, place: str) -> None:
        """Raise an `InputError` if an option names a file outside of the folder, or one of the Hub."""
        data = self.data
        check_names([self.options, data.retriever, data.options.get("tokenizer")], place)
        if self.options.get("transformer") is not None and self.transformer_config is None:
            raise InputError(f"{place}: names a transformer without its configuration; {_ADVICE}")


def _checked(values: object, owner: type[Any], place: str) -> PlainDict:
    """Return values whose names and types are those of a dataclass."""
    if not isinstance(values, dict):
        raise InputError(f"{place}: is not an object of names and values; {_ADVICE}")
    hints = get_type_hints(owner)
    if unknown := sorted(values.keys() - hints.keys()):
        raise InputError(f"{place}: has an unknown value {excerpt(unknown[0])!r}; {_ADVICE}")
    for name, hint in hints.items():
        if name not in values:
            raise InputError(f"{place}: lacks {name!r}; {_ADVICE}")
        # A hint is a class, `dict[str, Any]`, a dataclass, which is a dictionary here, or one of these or None.
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        kinds = tuple(get_origin(kind) or (dict if is_dataclass(kind) else kind) for kind in kinds)
        if not isinstance(values[name], kinds):
            raise InputError(f"{place}: {name!r} is a {type(values[name]).__name__}; {_ADVICE}")
    return values


def check_names(values: object, place: str) -> None:
    """Raise an `InputError` for a string in plain values, names included, that could name a file elsewhere."""
    if isinstance(values, dict):
        values = [*values.keys(), *values.values()]
    if isinstance(values, (list, tuple)):
        for value in values:
            check_names(value, place)
    elif isinstance(values, str) and is_outside(values):
        raise InputError(
            f"{place}: names {excerpt(values)}, which is outside of the folder; a model names nothing elsewhere"
        )


def is_outside(name: str) -> bool:
    """Return True for a string that could name a file outside of a folder."""
    path = PurePosixPath(name)
    return path.is_absolute() or name.startswith("~") or ".." in path.parts or "\0" in name


def without_place(value: object) -> object:
    """Replace a string that could name a file elsewhere by its last part."""
    if isinstance(value, str) and is_outside(value):
        return PurePosixPath(value).name.replace("\0", "").strip(".~") or None
    return value
