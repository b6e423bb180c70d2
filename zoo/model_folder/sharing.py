"""A trained model is shared: as a repository of the Hugging Face Hub, or as an artifact of Weights & Biases."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError
from zoo.model_folder import artifacts, hub
from zoo.model_folder.export import export
from zoo.model_folder.folder import ModelFolder

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


def upload(folder: Path, name: str, private: bool = False) -> str:
    """Upload an exported model, and return its new address."""
    if artifacts.is_artifact_name(name):
        return artifacts.push(folder, name, ModelFolder.open(folder).meta.data.files)
    return hub.push(folder, name, private)


def log_run(run: Run, run_dir: Path, name: str) -> None:
    """Log the best model of a training as an artifact of its W&B run."""
    with tempfile.TemporaryDirectory() as parent:
        folder = export(run_dir, Path(parent) / "model")
        files = ModelFolder.open(folder).meta.data.files
        with artifacts.named_errors("--trainer.logger.log_model"):
            artifacts.log_artifact(run, folder, name, files, ["latest", "best"])
