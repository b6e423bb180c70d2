"""Checkpoints of Lightning, from which a training resumes: reading and writing, and the model's part in them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import named_disk_errors, new_file
from zoo.layers.lora import without_adapters
from zoo.model_folder.folder import ModelFolder
from zoo.model_folder.meta import Meta

#: Key of our part of a checkpoint.
CHECKPOINT_KEY = "memory_zoo"


@dataclass(frozen=True)
class Start:
    """A trained model that another one starts from: its description, and its weights without adapters.

    `open` reads it from a model folder, or from the checkpoint of a run that is not finished.
    """

    meta: Meta
    weights: dict[str, Tensor]

    @classmethod
    def open(cls, source: str, device: torch.device | None = None) -> Start:
        """Read a model with its weights."""
        if Path(source).is_file():
            contents = read_contents(Path(source))
            meta, weights = meta_of(contents, source), contents["state_dict"]
        else:
            folder = ModelFolder.open(source)
            meta, weights = folder.whole_meta, folder.weights()
        tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
        return cls(meta, {name: value.to(device) for name, value in without_adapters(tensors).items()})


def meta_of(contents: Mapping[str, Any], source: str | Path) -> Meta:
    """Return the model's part of a checkpoint; raise an `InputError` if it is missing or damaged."""
    if CHECKPOINT_KEY not in contents:
        raise InputError(f"{source}: not a Memory Zoo checkpoint; give one that `zoo fit` wrote")
    return Meta.parse(contents[CHECKPOINT_KEY]["model"], str(source))


def read_contents(path: Path) -> dict[str, Any]:
    """Read a checkpoint file, tensors on the CPU; raises an `InputError` if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint")
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not compare its checksums
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} has changed")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no checkpoint fails in many ways
        raise InputError(
            f"{path}: truncated, damaged or no checkpoint; use another one of the run ({reason(error)[:80]})"
        ) from error
    if not isinstance(contents, dict) or not isinstance(contents.get("state_dict"), dict):
        raise InputError(f"{path}: not a Memory Zoo checkpoint; give one that `zoo fit` wrote")
    return contents


def check_shapes(
    meta: Meta, options: Mapping[str, Any], own: Mapping[str, Any], weights: Mapping[str, Any]
) -> None:
    """Raise an `InputError` that names the options that differ if weights have other names or shapes than a model's."""
    shapes = [
        {name: value.shape for name, value in each.items() if isinstance(value, Tensor)}
        for each in (own, weights)
    ]
    if shapes[0] == shapes[1]:
        return
    differences = [
        f"{name} {meta.options[name]}, not {value}"
        for name, value in options.items()
        if meta.options.get(name, value) != value
    ]
    raise InputError(
        "the trained weights do not fit the model, which was trained with "
        + ("; ".join(differences) or "other data or another version")
        + "; give the same model options as in training"
    )


def write_contents(contents: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint file in one step: a killed process leaves the old file or the new one."""
    with named_disk_errors(path, "--run_dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()  # PyTorch's writer would report a position in place of a full disk
    torch.save(dict(contents), buffer)
    with new_file(path, "--run_dir") as partial, partial.open("wb") as file:
        file.write(buffer.getbuffer())


def plain(value: object) -> Any:
    """Replace everything that `torch.load(weights_only=True)` refuses by a string."""
    return json.loads(json.dumps(value, default=str))
