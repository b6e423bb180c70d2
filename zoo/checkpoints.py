"""Reading checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import zoo
from datamodules.errors import InputError

#: Key of our part of a checkpoint.
CHECKPOINT_KEY = "memory_zoo"


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint, tensors on the CPU.

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
    return checkpoint
