"""Other values of options, and what they must do: for the tests that walk all options of models and data."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

CHANGES, REFUSED, LOGGED = "changes the result", "is refused", "is logged"


class Case(NamedTuple):
    """Another value of an option, and what it must do next to some other options."""

    value: Any
    #: the other options, with both values.
    options: Mapping[str, Any] = MappingProxyType({})
    #: the options of a model's data, with both values.
    data: Mapping[str, Any] = MappingProxyType({})
    effect: str = CHANGES


class NoEffect(NamedTuple):
    """No value changes a result."""

    reason: str


#: Class -> option -> case; of the classes that a class inherits from, the first with the option counts.
Cases: TypeAlias = dict[str, dict[str, Case | NoEffect]]


class Option(NamedTuple):
    """An option of a class: its type, and its value where no other is given."""

    type: Any
    value: Any

    def other(self) -> Any:
        """Another value by the type; None where only a table can name one."""
        if isinstance(self.value, bool):
            return not self.value
        if isinstance(self.value, int):
            return self.value + 1
        if isinstance(self.value, float):
            return self.value / 2 if self.value > 0.5 else self.value + 0.25
        if isinstance(self.value, tuple) and self.value:
            return (*self.value[:-1], self.value[-1] + 1)
        choices = get_args(self.type) if get_origin(self.type) is Literal else ()
        return next((choice for choice in choices if choice != self.value), None)


def constructor_options(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Option]:
    """The options of all constructors of a class; `given` are values in place of the defaults."""
    options: dict[str, Option] = {}
    for base in inspect.getmro(kind):
        if "__init__" in vars(base):
            types = get_type_hints(vars(base)["__init__"])
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    options.setdefault(name, Option(types.get(name), given.get(name, parameter.default)))
    return options


def wrong_options(
    kinds: list[type[Any]], options: Mapping[str, Option], cases: Cases, effect: Callable[[str, Case], str]
) -> list[str]:
    """The options of a class (and its class of options) with another effect than that of their case.

    An option without a case must change the result by another value of its type.
    """
    bases = [base.__name__ for kind in kinds for base in kind.__mro__]
    wrong = []
    for name, option in options.items():
        found = (cases[base].get(name) for base in bases if base in cases)
        case = next((each for each in found if each is not None), Case(option.other()))
        if isinstance(case, NoEffect):
            continue
        if case.value is None:
            wrong.append(f"{kinds[0].__name__}.{name}: has no case in the table of this test")
        elif (done := effect(name, case)) != case.effect:
            wrong.append(f"{kinds[0].__name__}.{name}={case.value!r} {done}; expected: {case.effect}")
    return wrong


def plain_values(value: Any) -> Iterator[Any]:
    """Values that can be compared, of nested lists and mappings of arrays."""
    if isinstance(value, Tensor | np.ndarray):
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        yield array.shape, array.tobytes()
    elif isinstance(value, Mapping):
        yield from plain_values(list(value.items()))
    elif isinstance(value, list | tuple) and value:
        for each in value:
            yield from plain_values(each)
    else:
        yield repr(value)


def write_other_bert(bert: Path) -> None:
    """Write a transformer with other weights than `bert` into the folder `other-bert`."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(shutil.copytree(bert, "other-bert"))
    model.embeddings.word_embeddings.weight.data.neg_()
    model.save_pretrained("other-bert")
