"""A trained model is shared: as a repository of the Hugging Face Hub, or as an artifact of Weights & Biases."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.preparation import contents_of_files
from datamodules.state import DataState
from zoo.model_folder import artifacts, hub
from zoo.model_folder.artifacts import Input
from zoo.model_folder.export import export
from zoo.model_folder.folder import ModelFolder
from zoo.registry import model_class

if TYPE_CHECKING:
    from wandb import Run


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
    with tempfile.TemporaryDirectory() as parent:
        folder = export(model, Path(parent) / "model")
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
    return artifacts.push(folder, name, tables, describe(ModelFolder.open(folder)))


def table_of(option: str, file: str) -> Input:
    """Return a table that a command reads, with its checksum."""
    return Input(option, file, contents_of_files(file))


def log_run(run: Run, run_dir: Path, name: str, data: DataState, rows: Mapping[str, int]) -> None:
    """Make the best model of a training an artifact of its W&B run, and the files that it was trained on its inputs."""
    with tempfile.TemporaryDirectory() as parent:
        folder = export(run_dir, Path(parent) / "model")
        inputs = [*artifacts.inputs_of(data, rows)]
        with artifacts.named_errors("--trainer.logger.log_model"):
            described = describe(ModelFolder.open(folder))
            artifacts.log_model(run, folder, name, inputs, described, ["latest", "best"])


def describe(folder: ModelFolder) -> PlainDict:
    """Return model, task and version of the memory of a model, as the metadata of its artifact."""
    model = folder.meta.model
    return {"model": model, "task": model_class(model).task, "memory_version": folder.state.version}
