"""The folder of a trained model: `runs/NAME/model`, or a copy of it anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from datamodules.core import storage
from datamodules.core.errors import DamagedError, InputError
from datamodules.core.files import load_tensors
from datamodules.core.sharing import cached_property
from datamodules.core.types import PlainDict
from datamodules.retrieval import Memory, Retriever, make_retriever, open_memory
from datamodules.retrieval.dense.ranking import trained_model
from zoo.model_folder import artifacts
from zoo.model_folder.meta import Meta
from zoo.model_folder.state import State, with_tensors

#: Folder of the model in that of its run.
IN_RUN = "model"
MODEL, VOCABULARY, WEIGHTS = "model.json", "vocabulary.json", "model.safetensors"
#: The pointer: the current version of the memory, and the fitted values.
STATE = "state.json"
#: Key of the state: the report of the last fit after the training.
REPORT = "report"
#: What is learned from the rows of the training, and stays.
LEARNED = (MODEL, WEIGHTS, VOCABULARY)
MEMORY, TOKENIZER, FITTED = "memory", "tokenizer", "fitted"
#: Fingerprint of the manifest, which has the files that never change.
KIND = "memory-zoo model 3"

_ADVICE = "copy or download the folder again"


class ModelFolder:
    """A trained model on the disk, with everything that it names: vocabulary, weights, tokenizer, memory.

    `zoo fit` writes it, whole or not at all; edits of the memory and `zoo memory tune` switch its state. Every command
    opens it, reads only what it needs, and nothing outside of the folder, whoever made it.
    """

    def __init__(self, source: str | Path, path: Path, meta: Meta) -> None:
        #: the name that the user gave.
        self.source = str(source)
        self.path, self.state_file = path, path / STATE
        #: the vocabulary is not read: see `whole_meta`.
        self.meta = meta

    @classmethod
    def open(cls, source: str | Path) -> ModelFolder:
        """Open a run folder, a model folder, or the name of a model on the Hub or in W&B, without its weights."""
        path = local_path(source)
        values = _object(path, MODEL)
        values.pop("values", None)
        meta = Meta.parse(values, str(path / MODEL))
        meta.check_inside(str(path / MODEL))
        return cls(source, path, meta)

    @property
    def state(self) -> State:
        """The state as it is now; another process may switch it."""
        if not self.state_file.exists():
            raise DamagedError(f"{self.state_file}: missing; {_ADVICE}")
        return State.parse(storage.read_checked(self.state_file, _ADVICE), str(self.state_file))

    @property
    def is_edited(self) -> bool:
        """True if the memory, or what is fitted to it, is no longer that of the training."""
        trained, state = storage.read_checked(self.state_file, _ADVICE).get("trained"), self.state
        tuned = any(fitted.weights or fitted.members for fitted in state.fitted.values())
        return tuned or trained != (state.version or 0)

    def training_columns(self, **given: Any) -> PlainDict:
        """Return arguments of `read_table` for tables of texts: those that are given, and None = as in training."""
        names = ("text_column", "label_column", "label_separator", "header", "quotes", "class_names")
        options = self.meta.data.options
        named = {name: options[name] for name in names if name in options}
        if options.get("label_columns") is not None:
            named["label_column"] = options["label_columns"]
        return named | {name: value for name, value in given.items() if value is not None}

    @cached_property
    def whole_meta(self) -> Meta:
        """The description of the model with the vocabulary."""
        return replace(self.meta, data=replace(self.meta.data, **_object(self.path, VOCABULARY)))

    def weights(self) -> PlainDict:
        """Read the weights by name: tensors, and plain values with tensors."""
        plain = _object(self.path, MODEL, WEIGHTS)["values"]
        tensors = load_tensors(self.path / WEIGHTS, _ADVICE)
        own = {name: tensor for name, tensor in tensors.items() if name.partition("/")[0] not in plain}
        return {**own, **with_tensors(plain, tensors)}

    def retriever(self) -> Retriever:
        """Make the retriever of the training."""
        return make_retriever(self.meta.data.retriever, self.path)

    @property
    def has_memory(self) -> bool:
        """True if the memory is in the folder."""
        return self.state.version is not None

    def open_memory(self) -> Memory:
        """Open the current version of the memory with the retriever of the training."""
        retriever = self.retriever()
        if not self.has_memory and retriever.existing_index is None:
            raise InputError(f"{self.source}: this model reads no memory; train one with --data.num_memories")
        return open_memory(str(self.path / MEMORY), retriever)

    def check_changeable(self) -> None:
        """Raise an `InputError` for a download, whose files the next one would replace."""
        if not Path(self.source).exists():
            raise InputError(
                f"{self.source}: a model is not changed in its download; copy it with"
                f" `zoo export {self.source} FOLDER`, and change that"
            )

    def switch(self, change: Callable[[State], State]) -> None:
        """Switch to other fitted values in one step; the version of the memory stays as it is."""
        place = str(self.state_file)
        storage.update(
            self.state_file,
            lambda values: {**values, "fitted": change(State.parse(values, place)).describe_fitted()},
        )

    def delete_unused_values(self) -> None:
        """Delete the files of fitted values that the state does not name, and those that killed fits have left."""
        with storage.lock(self.path / FITTED):
            used = {name for fitted in self.state.fitted.values() for name in fitted}
            for file in (self.path / FITTED).glob("*.safetensors*"):
                if file.name not in used:
                    file.unlink()


def ignoring(folder: Path, *names: str) -> Callable[[str, list[str]], set[str]]:
    """Return an `ignore` of `copytree`: hidden files, and these names in the folder itself, but not in its encoder."""
    return lambda place, found: {
        each for each in found if each.startswith(".") or (each in names and Path(place) == folder)
    }


def _object(folder: Path, name: str, *others: str) -> PlainDict:
    """Return the values of a JSON file of a model folder; raise an `InputError` if it, or one of others, is damaged."""
    storage.check_files(folder, storage.check_folder(folder, KIND, advice=_ADVICE), [name, *others], _ADVICE)
    try:
        values: PlainDict = storage.load_json(folder / name)
    except ValueError as error:
        raise InputError(f"{folder / name}: is not JSON ({error}); {_ADVICE}") from error
    if not isinstance(values, dict):
        raise InputError(f"{folder / name}: is not an object of names and values; {_ADVICE}")
    return values


def local_path(source: str | Path) -> Path:
    """Return the model folder that a path or a name stands for; a run folder has it as `model`."""
    path = Path(source)
    if (folder := trained_model(str(source))) is not None:
        return folder
    if path.is_dir():
        unfinished = path / "checkpoints" / "last.ckpt"
        hint = (
            f"zoo fit --ckpt_path {unfinished} finishes its training and writes the model"
            if unfinished.is_file()
            else "give a run folder, or a model folder"
        )
        raise InputError(f"{path}: a folder without {IN_RUN}/{MODEL} or {MODEL}; {hint}")
    if path.exists():
        run = path.parent.parent if path.parent.name == "checkpoints" else "runs/NAME"
        raise InputError(
            f"{path}: a checkpoint only resumes a training (zoo fit --ckpt_path); name the folder of the run, {run}"
        )
    if isinstance(source, Path):
        raise InputError(f"{path}: no such model folder")
    if artifacts.is_artifact_name(source):
        return artifacts.download(source)
    if artifacts.is_hub_name(source):
        return artifacts.download_from_hub(source)
    raise InputError(f"{path}: no such run folder or model folder")


def is_model(path: str | Path) -> bool:
    """Return True unless a path is a folder without a model, such as a memory folder."""
    return not Path(path).is_dir() or trained_model(str(path)) is not None
