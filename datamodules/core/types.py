"""Types that many modules share: plain values, options that limit their values, and the check of an option."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from datamodules.core.errors import InputError

#: A mapping of plain values (strings, numbers, booleans, None, and lists and mappings of these), as JSON stores it.
PlainDict: TypeAlias = dict[str, Any]

#: A line for the log, with its level.
Message: TypeAlias = tuple[int, str]


def mapped(change: Callable[[Any], object], values: object) -> Any:
    """Return plain values with a change of each that is neither a mapping nor a list."""
    if isinstance(values, dict):
        return {name: mapped(change, value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [mapped(change, value) for value in values]
    return change(values)


class _Rule(NamedTuple):
    """The numbers that an option takes, in the annotation of its type."""

    is_allowed: Callable[[float], bool]
    text: str


_NOT_NEGATIVE = _Rule(lambda number: number >= 0, "0 or more")
Size: TypeAlias = Annotated[int, _Rule(lambda number: number >= 1, "at least 1")]
Count: TypeAlias = Annotated[int, _NOT_NEGATIVE]
NotNegative: TypeAlias = Annotated[float, _NOT_NEGATIVE]
Positive: TypeAlias = Annotated[float, _Rule(lambda number: number > 0, "above 0")]
Probability: TypeAlias = Annotated[float, _Rule(lambda number: 0 <= number < 1, "0 or more and below 1")]
Share: TypeAlias = Annotated[float, _Rule(lambda number: 0 <= number <= 1, "in 0..1")]


def check_value(option: str, value: object, kind: Any) -> None:
    """Raise an `InputError` if an option has a value that its type does not allow, alone or in a tuple."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    is_structured = type(value) in {get_origin(part) or part for part in parts} & {list, dict}
    if choices and value is not None and not is_structured and value not in choices:
        raise InputError(f"{option}={value!r}: choose one of {', '.join(map(str, choices))}")
    for part in parts:
        number_type = get_args(part)[0] if get_origin(part) is tuple else part
        numbers = value if isinstance(value, (tuple, list)) else [value]
        for rule in getattr(number_type, "__metadata__", ()):
            if value is not None and not (numbers and all(map(rule.is_allowed, numbers))):
                raise InputError(f"{option}={value}: must be {rule.text}")


def check_fields(options: object, prefix: str = "") -> None:
    """Check the fields of a dataclass of options; the prefix precedes their names in messages."""
    for name, kind in get_type_hints(type(options), include_extras=True).items():
        check_value(f"{prefix}{name}", getattr(options, name), kind)
