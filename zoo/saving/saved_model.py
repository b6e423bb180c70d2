"""A trained model on disk: a run folder, a checkpoint, an exported folder, or a name on the Hugging Face Hub.

What changes after the training lies next to the model: its own `memory` (see `FolderMemory`), and `weights.json` with
the files that it names (see `fitted_weights`).
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datamodules
from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.memory_source import MemoryLocation
from datamodules.retrieval import FolderMemory, Memory, Retriever, first_rows, make_retriever
from datamodules.state import DataState
from zoo.registry import model_class
from zoo.saving import fitted_weights, hub, model_folder
from zoo.saving.checkpoint import Checkpoint, explained_by, read_contents

if TYPE_CHECKING:
    import torch

    from datamodules.base import AnyDataModule
    from zoo.tasks.base import Task
    from zoo.tasks.predictor import Predictor

#: Folder of a model's own memory.
MEMORY = "memory"
#: The checkpoint that a run folder stands for.
_BEST = "checkpoints/best.ckpt"
#: Key of a memory that is made of a table, wherever it is.
OWN = "own"


class SavedModel:
    """A trained model; `open` makes it."""

    def __init__(self, source: str | Path, path: Path, checkpoint: Checkpoint) -> None:
        #: the name that the user gave.
        self.source = str(source)
        #: the checkpoint file, or the exported folder.
        self.path = path
        #: the model as it was trained.
        self.checkpoint = checkpoint
        #: whether the files are in the cache of the Hub's client.
        self.is_download = not Path(source).exists()

    @classmethod
    def open(cls, source: str | Path) -> SavedModel:
        """Open a run folder, a checkpoint file, an exported folder, or the name of a model on the Hub."""
        path = local_path(source)
        if path.is_dir():
            return cls(source, path, model_folder.read_model(path))
        return cls(source, path, Checkpoint.from_contents(read_contents(path), path))

    @property
    def kind(self) -> type[Task]:
        """The model's class."""
        with explained_by(self.source):
            return model_class(self.checkpoint.model)

    @property
    def data_kind(self) -> type[AnyDataModule]:
        """The class of the model's data."""
        with explained_by(self.source):
            return datamodules.find(self.checkpoint.data.kind)

    def file(self, name: str) -> Path:
        """Return a file of the model: in its folder, or next to a checkpoint that is in no run folder."""
        if self.path.is_dir():
            return self.path / name
        folder = self.path.absolute().parent
        return folder.parent / name if folder.name == "checkpoints" else self.path.with_suffix(f".{name}")

    @property
    def own_memory(self) -> Path:
        """The folder of the memory of an exported model, or of a run since its first addition."""
        return self.file(MEMORY)

    @cached_property
    def memory(self) -> MemoryLocation | None:
        """The memory that the model reads now."""
        trained = self.checkpoint.data.memory
        if trained is None:
            return None
        if trained.path != MEMORY:
            if self.path.is_dir() and not trained.path.startswith("index:"):
                raise InputError(
                    f"{self.source}: names a memory outside of its folder; name one with --memory"
                )
            if trained.rows is None or not self.own_memory.exists():
                return trained
        if trained.rows is not None and first_rows(self.own_memory) != trained.rows[1]:
            raise InputError(
                f"{self.own_memory}: is not the memory of {self.source}; move it away, and the model has the memory of"
                " its training again"
            )
        return MemoryLocation(str(self.own_memory), None, trained.version)

    @property
    def state(self) -> DataState:
        """The state of the model's data, with the memory that it reads now."""
        return replace(self.checkpoint.data, memory=self.memory)

    def memory_key(self, memory: Memory) -> tuple[str, int]:
        """Return name and version of a memory, which identify the weights that were fitted to it."""
        location = memory.location()
        trained = self.checkpoint.data.memory
        own = {str(self.own_memory), *(() if trained is None or trained.rows is None else (trained.path,))}
        version = memory.version if isinstance(memory, FolderMemory) else 0
        return OWN if location in own else location, version

    def make_model(self) -> Task:
        """Make the model with the weights of its training, in evaluation mode."""
        kind = self.kind
        with explained_by(self.source):
            model = kind(**self.checkpoint.options)
            model.restore(self.checkpoint)
            return model.eval()

    def make_data(self, retriever: Retriever | None = None) -> AnyDataModule:
        """Make the model's data module, ready for new rows, with the retriever of the training or another one."""
        kind, state = self.data_kind, self.state
        with explained_by(self.source):
            data = kind(retriever=retriever or make_retriever(state.retriever), **state.options)
            data.use_state(state)
            return data

    def fitted_weights(self) -> list[fitted_weights.Entry]:
        """Return the weights that were fitted after the training: before an export, and since."""
        exported = [
            fitted_weights.Entry(*entry) for entry in self.checkpoint.extras.get("fitted_weights", [])
        ]
        return [*exported, *fitted_weights.read_entries(self.file(fitted_weights.FILE))]

    def use_fitted_weights(self, model: Task, memory: Memory | None) -> None:
        """Replace weights and members by those that were fitted to the memory after the training, if any."""
        if memory is None or not isinstance(model, fitted_weights.FitsWeights):
            return
        trained = fingerprint_of({"weights": model.describe_weights()})
        entry = fitted_weights.entry_for(self.fitted_weights(), *self.memory_key(memory), trained)
        if entry is None:
            return
        model.use_weights(entry.weights)
        if entry.members is not None:
            members = fitted_weights.read_members(entry.members, self.file)
            with explained_by(self.file(fitted_weights.members_name(entry.members))):
                model.use_members(members)

    def predictor(
        self,
        memory: str | None = None,
        retriever: Retriever | None = None,
        device: str | torch.device = "cpu",
        memory_version: int | None = None,
    ) -> Predictor[Any, Any]:
        """Make a predictor; see `load`."""
        model, data = self.make_model(), self.make_data(retriever)
        move(model, device)
        predictor = model.predictor_type.open(model, data, memory, memory_version, retriever)
        self.use_fitted_weights(model, predictor.memory)
        return predictor


def load(
    source: str | Path,
    memory: str | Path | None = None,
    retriever: Retriever | None = None,
    device: str | torch.device = "cpu",
    memory_version: int | None = None,
) -> Any:
    """Load a trained model for prediction; only the model and its memory are needed.

    Args:
        source: a run folder (`runs/NAME`), a checkpoint, an exported folder, or a name on the Hub, `user/name`.
        memory: a memory folder to use instead of the model's.
        retriever: back end and ranking to use instead (credentials, another server).
        device: where to run the network.
        memory_version: of a memory that has grown: 1 is from before all additions; None uses the current version.

    Returns:
        A `Predictor` of the model's kind: a `ClassificationPredictor`, a `MatchingPredictor`, ...

    Raises:
        InputError: the model or its memory cannot be read, or the memory has no such version.

    Example:
        >>> zoo.load("runs/mine").predict(["a text"])[0].label  # doctest: +SKIP
    """
    location = None if memory is None else str(memory)
    return SavedModel.open(source).predictor(location, retriever, device, memory_version)


def local_path(source: str | Path) -> Path:
    """Return the checkpoint file or model folder of a path or a name on the Hub; a run has its best checkpoint."""
    path = Path(source)
    if (best := path / _BEST).is_file():
        return best
    if path.is_dir() and not (path / model_folder.CONFIG).is_file():
        raise InputError(
            f"{path}: a folder without {_BEST} or {model_folder.CONFIG}; give a run folder, a checkpoint, or a folder"
            " of `zoo export`"
        )
    if path.exists() or isinstance(source, Path) or not hub.is_hub_name(source):
        return path
    return hub.download(source)


def is_model(path: str | Path) -> bool:
    """Return True unless a path is a folder without a model, such as a memory folder."""
    path = Path(path)
    return not path.is_dir() or any((path / name).is_file() for name in (model_folder.CONFIG, _BEST))


def move(model: Task, device: str | torch.device) -> None:
    """Move a model to a device, or raise an `InputError` if there is no such device."""
    import torch

    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {device}: {reason}; use cpu or an available device") from error


def option_names(kind: type[Any]) -> list[str]:
    """Return the names of all options of a class whose constructors pass on those of their bases."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [
        name
        for base in inspect.getmro(kind)
        if "__init__" in vars(base)
        for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items()
        if parameter.kind in named and name != "self"
    ]
    return list(dict.fromkeys(names))
