"""Everything up to tensors: corpora, text, retrieval, and the data modules that put them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datamodules.errors import InputError

if TYPE_CHECKING:
    from datamodules.classification import ClassificationDataModule

__all__ = ["ClassificationDataModule", "InputError"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: retrieval alone needs neither PyTorch nor Lightning (seconds, and 700 MB).
    if name == "ClassificationDataModule":
        from datamodules.classification import ClassificationDataModule

        return ClassificationDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
