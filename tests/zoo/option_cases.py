"""Other values of options, and what they must do: for the tests that walk all options of models and data."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

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


def wrong_options(
    kinds: list[type[Any]], names: list[str], cases: Cases, effect: Callable[[str, Case], str]
) -> list[str]:
    """The options of a class (and its class of options) without a case, and those with another effect than theirs."""
    bases = [base.__name__ for kind in kinds for base in kind.__mro__]
    wrong = []
    for option in names:
        found = (cases[base].get(option) for base in bases if base in cases)
        case = next((each for each in found if each is not None), None)
        if case is None:
            wrong.append(f"{kinds[0].__name__}.{option}: has no case in the table of this test")
        elif isinstance(case, Case) and (done := effect(option, case)) != case.effect:
            wrong.append(f"{kinds[0].__name__}.{option}={case.value!r} {done}; expected: {case.effect}")
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
