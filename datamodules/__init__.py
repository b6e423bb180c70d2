"""Everything up to tensors: corpora, text, retrieval, and the data modules that put them together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from datamodules.core.classes import imported_subclass
from datamodules.core.errors import InputError

if TYPE_CHECKING:
    from datamodules.base import TextDataModule
    from datamodules.classification import ClassificationDataModule
    from datamodules.clickthrough import ClickthroughDataModule
    from datamodules.dialogue import DialogueDataModule
    from datamodules.matching import MatchingDataModule

__all__ = [
    "ClassificationDataModule",
    "ClickthroughDataModule",
    "DialogueDataModule",
    "InputError",
    "MatchingDataModule",
    "find",
]

#: Name -> module of every data module. They are imported when they are asked for: retrieval alone needs neither
#: PyTorch nor Lightning (seconds, and 700 MB).
MODULES = {
    "ClassificationDataModule": "datamodules.classification",
    "ClickthroughDataModule": "datamodules.clickthrough",
    "DialogueDataModule": "datamodules.dialogue",
    "MatchingDataModule": "datamodules.matching",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def find(name: str) -> type[TextDataModule[Any, Any]]:
    """A data module by its name, with or without its module's: one of the zoo, or of a module that was imported.

    Raises:
        InputError: there is none.
    """
    from datamodules.base import TextDataModule

    short = name.rpartition(".")[2]
    if short in MODULES:
        found: type[TextDataModule[Any, Any]] = __getattr__(short)
        return found
    own: type[TextDataModule[Any, Any]] | None = imported_subclass(TextDataModule, short)
    if own is None:
        raise InputError(
            f"no data module {name!r}; there are {', '.join(MODULES)}, and one of your own must be imported before"
        )
    return own
