"""Imported classes by their names, and the options of their constructors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def imported_subclass(base: type[T], class_path: str) -> type[T] | None:
    """Return `base` or its imported subclass `NAME` or `MODULE.NAME`; the module decides between equal names only."""
    # Nothing is imported here: the name may come from a stranger's checkpoint.
    module, _, name = class_path.rpartition(".")
    match = None
    pending = [base]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__name__ == name and (match is None or kind.__module__ == module):
            match = kind
    return match


@contextmanager
def searched(folder: str) -> Iterator[None]:
    """Find modules of the user's in a folder, after all others, within the block."""
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def folder_of(kind: type[object]) -> str:
    """Return the folder in which Python finds the module or package of a class."""
    file = Path(inspect.getfile(kind))
    depth = kind.__module__.count(".") + (file.name == "__init__.py")
    return str(file.absolute().parents[depth])


def option_defaults(kind: type[object]) -> dict[str, object]:
    """Return the options of a class whose constructors pass on those of their bases, with their defaults."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    defaults: dict[str, object] = {}
    for base in inspect.getmro(kind):
        if "__init__" in vars(base):
            for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items():
                if parameter.kind in named and name != "self":
                    defaults.setdefault(name, parameter.default)
    return defaults
