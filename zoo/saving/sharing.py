"""A trained model is shared: as a repository of the Hugging Face Hub, or as an artifact of Weights & Biases."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.preparation import contents_of_files
from zoo.saving import artifacts, hub
from zoo.saving.artifacts import Input
from zoo.saving.export import export
from zoo.saving.saved_model import SavedModel

if TYPE_CHECKING:
    from wandb import Run

#: Bytes. A larger memory is no part of an artifact, which names its folder and version instead.
_LARGEST_MEMORY = 1e9


def check_target(name: str, private: bool = False) -> None:
    """Raise an `InputError` unless a model can be uploaded under this name."""
    if artifacts.is_artifact_name(name):
        artifacts.check_artifact_name(name, with_version=False)
        if private:
            raise InputError("--private: an artifact is as private as its project in W&B; omit the option")
    elif not hub.is_hub_name(name):
        raise InputError(
            f"--push {name}: write user/name for the Hugging Face Hub, or wandb:entity/project/name for W&B"
        )


def share(model: str, name: str, tables: Sequence[Input]) -> str:
    """Export a model and upload it; `tables` have the rows by which its memory or its weights were changed."""
    largest = _LARGEST_MEMORY if artifacts.is_artifact_name(name) else None
    with tempfile.TemporaryDirectory() as parent:
        folder = export(model, Path(parent) / "model", largest)
        try:
            return upload(folder, name, tables=tables)
        except InputError as error:
            raise InputError(
                f"{error}; {model} is changed, and `zoo export {model} FOLDER --push {name}` uploads it later"
            ) from error


def upload(folder: Path, name: str, private: bool = False, tables: Sequence[Input] = ()) -> str:
    """Upload an exported model, and return its new address."""
    if not artifacts.is_artifact_name(name):
        return hub.push(folder, name, private)
    saved = SavedModel.open(folder)
    inputs = [*artifacts.inputs_of(saved.checkpoint.data, {}), *tables]
    return artifacts.push(folder, name, inputs, describe(saved))


def table_of(option: str, file: str) -> Input:
    """Return a table that a command reads, with its checksum."""
    return Input(option, file, contents_of_files(file))


def log_run(run: Run, run_dir: Path, name: str, rows: Mapping[str, int]) -> None:
    """Make the best model of a training an artifact of its W&B run, and the files that it was trained on its inputs."""
    with tempfile.TemporaryDirectory() as parent:
        folder = export(run_dir, Path(parent) / "model", _LARGEST_MEMORY)
        saved = SavedModel.open(folder)
        inputs = [*artifacts.inputs_of(saved.checkpoint.data, rows)]
        with artifacts.named_errors("--trainer.logger.log_model"):
            artifacts.log_model(run, folder, name, inputs, describe(saved), ["latest", "best"])


def describe(saved: SavedModel) -> PlainDict:
    """Return model, task and memory of an exported model, as the metadata of its artifact."""
    memory = saved.checkpoint.data.memory
    place = None if memory is None else {"path": memory.path, "version": memory.version}
    return {"model": saved.checkpoint.model, "task": saved.kind.task, "memory": place}
