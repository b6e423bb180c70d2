"""What a checkpoint of this zoo holds besides weights, and reading it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from pytorch_lightning.plugins import TorchCheckpointIO
from typing_extensions import override

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import named_disk_errors, new_file
from datamodules.retrieval import is_memory
from zoo.saving.model_folder import MEMORY, local_model, read_parts

#: Key of our part of a checkpoint.
CHECKPOINT_KEY = "memory_zoo"


def own_memory(path: str | Path) -> Path:
    """Where the memory of a checkpoint's run is, once it has one of its own.

    At first runs on the same rows share a memory in the cache. `zoo memory add` gives the run a copy, beside
    its checkpoints, and that one grows: the other runs' predictions stay as they are. An exported model has its
    memory in its folder.
    """
    place = Path(path).absolute()
    return (place if place.is_dir() else place.parent) / MEMORY


def note_memory(path: str | Path, memory: str, version: int) -> None:
    """Let a run's checkpoints state the memory of its own that they use now, so that copies of them know it, too."""

    def change(data: dict[str, Any]) -> None:
        if data.get("own_memory") and data["memory"] == memory:
            data["memory_version"] = version

    _note(path, change)


def note_labels(path: str | Path, labels: Sequence[str]) -> None:
    """Let a run's checkpoints state the labels that only the memory knows."""
    _note(path, lambda data: data.update(new_labels=list(labels)))


def _note(path: str | Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the checkpoints of a run, of which one is named, say of their data."""
    for one in sorted(Path(path).resolve().parent.glob("*.ckpt")):
        contents = read_checkpoint(one)
        before = dict(contents[CHECKPOINT_KEY]["data"])
        change(contents[CHECKPOINT_KEY]["data"])
        if contents[CHECKPOINT_KEY]["data"] != before:
            write_checkpoint(contents, one)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint, tensors on the CPU; its memory is the run's own, if it has one.

    Args:
        path: a checkpoint; or an exported model, a folder or a name of the Hugging Face Hub.

    Raises:
        InputError: no such file, truncated or damaged, or not of this project.
    """
    path = local_model(path)
    checkpoint = read_parts(path) if path.is_dir() else _read_file(path)
    _check_parts(checkpoint, path)
    data, own = checkpoint[CHECKPOINT_KEY]["data"], own_memory(path)
    # The whole run may have been moved; and what a training goes on writing does not know of additions.
    if (data.get("memory_rows") is not None or data.get("own_memory")) and is_memory(str(own)):
        data.update(memory=str(own), memory_rows=None, own_memory=True)
    elif data["memory"] == MEMORY and path.is_dir():
        data["memory"] = str(own)  # which is missing: say where it was
    return checkpoint


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint")
    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not compare its checksums
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} has changed")
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no checkpoint fails in whatever way its bytes happen to
        raise InputError(
            f"{path}: truncated, damaged or no checkpoint; use another one of the run ({reason(error)[:80]})"
        ) from error
    if not isinstance(checkpoint, dict) or CHECKPOINT_KEY not in checkpoint:
        raise InputError(f"{path}: not a Memory Zoo checkpoint; give one that `zoo fit` wrote")
    return checkpoint


#: Part of a checkpoint -> what it is; our own part first.
_PARTS: dict[str, Any] = {
    CHECKPOINT_KEY: dict,
    f"{CHECKPOINT_KEY}.model": str,
    f"{CHECKPOINT_KEY}.spec": dict,
    f"{CHECKPOINT_KEY}.data": dict,
    f"{CHECKPOINT_KEY}.data.class": str,
    f"{CHECKPOINT_KEY}.data.options": dict,
    f"{CHECKPOINT_KEY}.data.retriever": dict,
    f"{CHECKPOINT_KEY}.data.vocabulary": dict,
    f"{CHECKPOINT_KEY}.data.memory": (str, NoneType),
    "hyper_parameters": dict,
    "state_dict": dict,
}
_MISSING = object()


def _check_parts(checkpoint: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint that lacks a part that every one has."""
    for name, kind in _PARTS.items():
        part: Any = checkpoint
        for key in name.split("."):
            part = part.get(key, _MISSING)
        if not isinstance(part, kind):
            raise InputError(
                f"{path}: its part {name} is missing or damaged; use another checkpoint of the run"
            )


@contextmanager
def making_of(source: str | Path) -> Iterator[None]:
    """Make what a checkpoint says: what it says wrongly is the file's fault and not the program's.

    Args:
        source: what messages call the checkpoint.

    Raises:
        InputError: it lacks a part, or names an option or a class that does not exist.
    """
    try:
        yield
    except InputError as error:
        if str(source) in str(error):
            raise
        raise InputError(f"{source}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise InputError(
            f"{source}: damaged, or of another version of the zoo ({type(error).__name__}: {reason(error)}); use"
            " another checkpoint of the run, or that version"
        ) from error


def write_checkpoint(contents: dict[str, Any], path: Path) -> None:
    """Write what `read_checkpoint` reads, in one step: a killed process leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Through a file of Python's: PyTorch's own writer does not say that the disk is full.
    with named_disk_errors(path, "--run_dir"), new_file(path) as partial, partial.open("wb") as file:
        torch.save(contents, file)


class WholeCheckpoints(TorchCheckpointIO):
    """How Lightning writes checkpoints.

    Its own way writes to the system's folder for temporary files first; where that is another file system, a
    killed process or a full disk leaves half a file in place of a good one.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            write_checkpoint(checkpoint, Path(path))


def model_options(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a checkpoint's model was made with, but for optimizer and schedule."""
    ignored = ("optimizer", "lr_scheduler")
    return {
        name: value
        for name, value in checkpoint["hyper_parameters"].items()
        if not name.startswith("_") and name not in ignored
    }


def plain(value: Any) -> Any:
    """The value with everything that `torch.load(weights_only=True)` refuses made a string."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
