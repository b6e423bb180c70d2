"""Classes that were imported, by their names."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def imported_subclass(base: type[T], class_path: str) -> type[T] | None:
    """Return `base` or its imported subclass with this name, `NAME` or `MODULE.NAME`; None if there is none.

    The module decides only between classes with equal names. A stranger may have chosen the name: nothing is imported.
    """
    module, _, name = class_path.rpartition(".")
    match = None
    pending = [base]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__name__ == name and (match is None or kind.__module__ == module):
            match = kind
    return match
