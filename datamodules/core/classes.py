"""Classes that were imported, by their names."""

from __future__ import annotations

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
