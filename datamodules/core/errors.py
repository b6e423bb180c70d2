"""The exceptions for wrong input, and texts of others in messages: short, and without effect on a terminal."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from traceback import walk_tb

#: The number of characters that a message quotes of a wrong value: a table's header may have 20,000.
LONGEST = 200
#: The number of names or ids that a message lists.
_MOST_NAMED = 10

#: Control characters, lone surrogates, line separators, and marks that reverse the direction of other characters.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class InputError(ValueError):
    """Input that can't be used. The message is one line that names the file, row or option, and what to do."""


class DamagedError(InputError):
    """A file on the disk has changed since it was written. A cache builds it again."""


def check_count(name: str, count: int, most: int | None = None) -> None:
    """Refuse a count below 1 or above a limit with an `InputError` that names the option."""
    if count < 1 or (most is not None and count > most):
        raise InputError(f"--{name} {count}: must be 1 " + ("or more" if most is None else f"to {most:,}"))


def check_installed(package: str, extra: str, feature: str) -> None:
    """Refuse a feature whose optional package is missing with an `InputError` that names the `pip` command."""
    if find_spec(package) is None:
        raise InputError(f'{feature} needs the package {package}: pip install ".[{extra}]" in a checkout')


def excerpt(wrong: object, longest: int = LONGEST) -> str:
    """Quote a wrong value, or the message of an error, on one line of at most `longest` characters."""
    # The rest of a value of millions of characters is never read.
    text = " ".join(str(wrong)[: 20 * longest].split())
    return visible(text if len(text) <= longest else text[: longest - 1] + "…")


def visible(text: str) -> str:
    """Return a text of others for a terminal: its control characters as escapes, such as \\u001b, which JSON reads."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def suggestion(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a hint for a name that is none of `names`: the most similar one, or else all."""
    near = get_close_matches(name, [*names], n=1)
    listed = ", ".join(f"{prefix}{each}" for each in near or names)
    return f"did you mean {listed}?" if near else f"there are {listed}"


def name_some(names: Sequence[str]) -> str:
    """Return the first of some names for a message."""
    shown = ", ".join(repr(excerpt(name, 40)) for name in names[:_MOST_NAMED])
    return shown + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def reason(error: BaseException) -> str:
    """Quote the message of an error, or its class where it has no message."""
    return excerpt(error) or type(error).__name__


def raised_in(error: BaseException) -> str:
    """Return the module whose code raised an error."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")) if frames else ""
