"""A trained model on disk: a run folder, a checkpoint, an exported folder, or a name on the Hugging Face Hub or in W&B.

What changes after the training lies next to the model: its own `memory` (see `FolderMemory`), and `weights.json` with
the files that it names (see `fitted_weights`).
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datamodules
from datamodules.core.errors import InputError
from datamodules.core.origin import is_signed, own_name
from datamodules.core.sharing import cached_property
from datamodules.core.storage import fingerprint_of
from datamodules.core.types import PlainDict
from datamodules.memory_source import MemoryLocation
from datamodules.retrieval import FolderMemory, Memory, Retriever, first_rows, make_retriever
from datamodules.state import DataState
from datamodules.text.tokenization import OWN_TOKENIZERS
from zoo.registry import model_class
from zoo.saving import artifacts, fitted_weights, hub, model_folder
from zoo.saving.checkpoint import Checkpoint, explained_by, read_contents
from zoo.saving.fitted_weights import Entry
from zoo.saving.held_out import HeldOutRows

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
#: Options of models that name another model.
_OTHER_MODELS = ("transformer", "init_from")


class SavedModel:
    """A trained model; `open` makes it."""

    def __init__(self, source: str | Path, path: Path, checkpoint: Checkpoint) -> None:
        #: the name that the user gave.
        self.source = str(source)
        #: the checkpoint file, or the exported folder.
        self.path = path
        #: the model as it was trained.
        self.checkpoint = checkpoint
        #: whether the files are in a cache of downloads.
        self.is_download = not Path(source).exists()

    @classmethod
    def open(cls, source: str | Path) -> SavedModel:
        """Open a run folder, a checkpoint file, an exported folder, or the name of a model on the Hub or in W&B."""
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

    def check_changeable(self) -> None:
        """Raise an `InputError` for a download, whose files the next one would replace."""
        if self.is_download:
            raise InputError(
                f"{self.source}: a model is not changed in its download; copy it with"
                f" `zoo export {self.source} FOLDER`, and change that"
            )

    @property
    def own_memory(self) -> Path:
        """The folder of the memory of an exported model, or of a run since its first addition."""
        return self.file(MEMORY)

    @cached_property
    def is_own(self) -> bool:
        """True for a checkpoint of this user's runs; a model of anybody else uses nothing outside of its folder."""
        return self.path.is_file() and is_signed(self.checkpoint.data.places, self.checkpoint.signature)

    @property
    def stranger(self) -> Path | None:
        """The place of a stranger's model, outside of which it reads nothing; None for a run of this user's."""
        return None if self.is_own else self.path

    @property
    def options(self) -> PlainDict:
        """The options of the model's class; a stranger's name no other model of this machine."""
        options = dict(self.checkpoint.options)
        if not self.is_own:
            named = options.keys() & {*_OTHER_MODELS}
            options |= {name: own_name(options[name], self.path) for name in named}
        return options

    @cached_property
    def memory(self) -> MemoryLocation | None:
        """The memory that the model reads now; an `InputError` for one outside of the folder of a stranger's model."""
        trained = self.checkpoint.data.memory
        if trained is None or trained.path.startswith("index:"):
            return trained
        if self.path.is_dir():
            has_own = trained.path == MEMORY
        else:
            has_own = trained.rows is not None and self.own_memory.exists()
        if not has_own:
            if self.is_own:
                return trained
            raise InputError(
                f"{self.source}: names a memory outside of its folder; name one with --memory (zoo test, validate:"
                " --data.memory). Only the memories of your own runs are opened by their names"
            )
        if trained.rows is not None and first_rows(self.own_memory) != trained.rows[1]:
            raise InputError(
                f"{self.own_memory}: is not the memory of {self.source}; move it away, and the model has the memory of"
                " its training again"
            )
        return MemoryLocation(str(self.own_memory), None, trained.version)

    def state(self, names_memory: bool = False) -> DataState:
        """Return the state of the model's data, with the memory that it reads now unless the user names another.

        The state of a stranger's model names no files of this machine.
        """
        data = self.checkpoint.data
        if not self.is_own:
            options = self.data_kind.options_type.without_files(data.options)
            if (tokenizer := options.get("tokenizer")) not in OWN_TOKENIZERS:
                options["tokenizer"] = own_name(tokenizer, self.path)
            data = replace(data, options=options, files={})
        memory = None
        with suppress(InputError) if names_memory else nullcontext():
            memory = self.memory
        return replace(data, memory=memory)

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
            model = kind(**self.options)
            model.restore(self.checkpoint)
            return model.eval()

    def make_data(self, retriever: Retriever | None = None, names_memory: bool = False) -> AnyDataModule:
        """Make the model's data module, ready for new rows, with the retriever of the training or another one.

        With `names_memory`, the user names another memory, or none is read.
        """
        with explained_by(self.source):
            kind, state = self.data_kind, self.state(names_memory)
            data = kind(
                retriever=retriever or make_retriever(state.retriever, self.stranger), **state.options
            )
            data.use_state(state)
            # The network was made for these sizes: other words would be read outside of its tables.
            if data.spec != self.kind.spec_type(**self.checkpoint.spec):
                raise ValueError("its network was made for another vocabulary or other labels")
            return data

    def fitted_weights(self) -> list[fitted_weights.Entry]:
        """Return the weights that were fitted after the training: before an export, and since."""
        with explained_by(self.source):
            exported = [
                fitted_weights.Entry(*entry) for entry in self.checkpoint.extras.get("fitted_weights", [])
            ]
        return [*exported, *fitted_weights.read_entries(self.file(fitted_weights.FILE))]

    def use_fitted_weights(self, model: Task, memory: Memory | None) -> Entry | None:
        """Replace weights and members by those that were fitted to the memory after the training, if any."""
        if memory is None or not isinstance(model, fitted_weights.FitsWeights):
            return None
        trained = fingerprint_of({"weights": model.describe_weights()})
        entry = fitted_weights.entry_for(self.fitted_weights(), *self.memory_key(memory), trained)
        if entry is None:
            return None
        model.use_weights(entry.weights)
        if entry.members is not None:
            members = fitted_weights.read_values("members", entry.members, self.file)
            with explained_by(self.file(fitted_weights.values_name("members", entry.members))):
                model.use_members(members)
        return entry

    def held_out(self, entry: Entry | None) -> HeldOutRows | None:
        """Return the held-out rows of the training, or of the entry of `weights.json` that the model uses."""
        values: PlainDict | None = self.checkpoint.extras.get("held_out")
        if entry is not None:
            checksum = entry.held_out
            values = None if checksum is None else fitted_weights.read_values("held_out", checksum, self.file)
        with explained_by(self.source):
            return None if values is None else HeldOutRows.of(values)

    def predictor(
        self,
        memory: str | None = None,
        retriever: Retriever | None = None,
        device: str | torch.device = "cpu",
        memory_version: int | None = None,
    ) -> Predictor[Any, Any]:
        """Make a predictor; see `load`."""
        data = self.make_data(retriever, names_memory=memory is not None)
        model = self.make_model()
        move(model, device)
        predictor = model.predictor_type.open(model, data, memory, memory_version, retriever)
        entry = self.use_fitted_weights(model, predictor.memory)
        predictor.source, predictor.answer_file = _absolute(self.source), self.file("answer.json")
        predictor.held_out = self.held_out(entry)
        # Another process opens the same version of the memory, although the memory may have grown.
        version = predictor.memory.version if isinstance(predictor.memory, FolderMemory) else None
        location = None if memory is None else _absolute(memory)
        predictor.reopen = partial(load, predictor.source, location, retriever, device, version)
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
        source: a run folder (`runs/NAME`), a checkpoint, an exported folder, or a name: `user/name` on the Hub,
            `wandb:entity/project/name:v3` in W&B.
        memory: a memory folder to use instead of the model's.
        retriever: back end and ranking to use instead (credentials, another server).
        device: where to run the network.
        memory_version: of a memory that has grown: 1 is from before all additions; None uses the current version.

    Returns:
        A `Predictor` of the model's kind: a `ClassificationPredictor`, a `MatchingPredictor`, ... Any number of threads
        may use it, one computes at a time. A forked process computes in one thread; a pickled predictor loads the model
        again, with the same version of the memory.

    Raises:
        InputError: the model or its memory cannot be read, or the memory has no such version.

    Example:
        >>> zoo.load("runs/mine").predict(["a text"])[0].label  # doctest: +SKIP
    """
    location = None if memory is None else str(memory)
    return SavedModel.open(source).predictor(location, retriever, device, memory_version)


def local_path(source: str | Path) -> Path:
    """Return the checkpoint file or model folder of a path, or of a name; a run has its best checkpoint."""
    path = Path(source)
    if (best := path / _BEST).is_file():
        return best
    if path.is_dir() and not (path / model_folder.CONFIG).is_file():
        raise InputError(
            f"{path}: a folder without {_BEST} or {model_folder.CONFIG}; give a run folder, a checkpoint, or a folder"
            " of `zoo export`"
        )
    if path.exists() or isinstance(source, Path):
        return path
    if artifacts.is_artifact_name(source):
        return artifacts.download(source)
    return hub.download(source) if hub.is_hub_name(source) else path


def _absolute(name: str) -> str:
    """Return an existing path as an absolute one, and any other name as it is."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def is_model(path: str | Path) -> bool:
    """Return True unless a path is a folder without a model, such as a memory folder."""
    path = Path(path)
    return not path.is_dir() or any((path / name).is_file() for name in (model_folder.CONFIG, _BEST))


def move(model: torch.nn.Module, device: str | torch.device) -> None:
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
