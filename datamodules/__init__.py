"""The data modules and the retrieval engine: from tables and collections to the tensors of a batch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from datamodules.core.classes import imported_subclass
from datamodules.core.errors import InputError as InputError

if TYPE_CHECKING:
    from datamodules.base import DataModule
    from datamodules.classification import ClassificationDataModule as ClassificationDataModule
    from datamodules.clickthrough import ClickthroughDataModule as ClickthroughDataModule
    from datamodules.dialogue import DialogueDataModule as DialogueDataModule
    from datamodules.matching import MatchingDataModule as MatchingDataModule

#: Name -> module of every data module. They are imported on first use: retrieval alone needs neither PyTorch nor
#: Lightning (seconds, and 700 MB).
MODULES = {
    "ClassificationDataModule": "datamodules.classification",
    "ClickthroughDataModule": "datamodules.clickthrough",
    "DialogueDataModule": "datamodules.dialogue",
    "MatchingDataModule": "datamodules.matching",
}
__all__ = [*MODULES, "InputError", "find"]


def __getattr__(name: str) -> object:
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def find(name: str) -> type[DataModule]:
    """The data module with this class name: of the zoo, or of an imported module; an `InputError` if there is none."""
    from datamodules.base import DataModule

    short = name.rpartition(".")[2]
    if short in MODULES:
        import_module(MODULES[short])
        name = f"{MODULES[short]}.{short}"
    kind: type[DataModule] | None = imported_subclass(DataModule, name)
    if kind is None:
        known = f"there are {', '.join(MODULES)}, and one of your own must be imported before"
        raise InputError(f"no data module {name!r}; {known}")
    return kind
