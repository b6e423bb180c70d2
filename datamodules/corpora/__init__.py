"""Readers of tables of texts: a user's own files, published data sets, and splits of both."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datamodules.corpora.rows import Rows
    from datamodules.corpora.split import limit_classes, select_classes, stratified_split
    from datamodules.corpora.table import read_table

# Imported when asked for: Arrow alone takes a quarter of a second.
_MODULES = {
    "Rows": "rows",
    "limit_classes": "split",
    "read_table": "table",
    "select_classes": "split",
    "stratified_split": "split",
}

__all__ = [
    "Rows",
    "limit_classes",
    "read_table",
    "select_classes",
    "stratified_split",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
