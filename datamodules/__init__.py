"""Everything up to tensors: corpora, text, retrieval, and the data modules that put them together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from datamodules.errors import InputError

if TYPE_CHECKING:
    from datamodules.classification import ClassificationDataModule
    from datamodules.matching import MatchingDataModule

__all__ = ["ClassificationDataModule", "InputError", "MatchingDataModule"]

# Imported when asked for: retrieval alone needs neither PyTorch nor Lightning (seconds, and 700 MB).
_MODULES = {
    "ClassificationDataModule": "datamodules.classification",
    "MatchingDataModule": "datamodules.matching",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
