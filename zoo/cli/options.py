"""Looking at options before a parser does: which checkpoint decides what the parser knows."""

from __future__ import annotations

from collections.abc import Sequence


def value_of(option: str, options: Sequence[str]) -> str | None:
    """The value that an option is given, as `--option value` or `--option=value`; None where it is not given."""
    return given(options).get(option)


def given(options: Sequence[str]) -> dict[str, str]:
    """The options that are given with a value, each with its last one."""
    found = {}
    for i, item in enumerate(options):
        name, equals, value = item.partition("=")
        if not name.startswith("--"):
            continue
        if equals:
            found[name] = value
        elif i + 1 < len(options) and not options[i + 1].startswith("--"):
            found[name] = options[i + 1]
    return found
