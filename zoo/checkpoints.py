"""Reading checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import zoo
from datamodules.errors import InputError
from datamodules.retrieval.memory import POINTER

#: Key of our part of a checkpoint.
CHECKPOINT_KEY = "memory_zoo"


def own_memory(path: str | Path) -> Path:
    """Where the memory of a checkpoint's run is, once it has one of its own.

    At first runs on the same rows share a memory in the cache. `zoo memory add` gives the run a copy, beside
    its checkpoints, and that one grows: the other runs' predictions stay as they are.
    """
    return Path(path).absolute().parent / "memory"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint, tensors on the CPU; its memory is the run's own, if it has one.

    Raises:
        InputError: no such file, truncated or damaged, or not of this project.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint")
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no checkpoint fails in whatever way its bytes happen to
        raise InputError(
            f"{path}: truncated, damaged or no checkpoint; use another one of the run"
            f" ({(str(error) or type(error).__name__).splitlines()[0][:80]})"
        ) from error
    if not isinstance(checkpoint, dict) or CHECKPOINT_KEY not in checkpoint:
        raise InputError(f"{path}: not a Memory Zoo checkpoint; give one that `zoo fit` wrote")
    name = checkpoint[CHECKPOINT_KEY]["model"]
    if name not in zoo.list_models():
        raise InputError(f"{path}: of a model {name!r}, which this version does not have (see `zoo list`)")
    data, own = checkpoint[CHECKPOINT_KEY]["data"], own_memory(path)
    if data.get("memory") is not None and data["options"]["memory"] is None and (own / POINTER).exists():
        data["memory"] = str(own)
    return checkpoint
