"""Checkpoints: what a Lightning checkpoint of this zoo holds, how it is read and written.

PyTorch is imported where it is used, so that commands on memories start fast.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import named_disk_errors, new_file
from datamodules.core.types import PlainDict
from datamodules.state import DataState

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Buffer

#: Key of our part of a checkpoint.
CHECKPOINT_KEY = "memory_zoo"
_OPTIMIZER_OPTIONS = ("optimizer", "lr_scheduler")


@dataclass
class Checkpoint:
    """A trained model as it was saved."""

    #: class name.
    model: str
    #: constructor arguments, without optimizer and schedule.
    options: PlainDict
    #: fields of the data's description.
    spec: PlainDict
    data: DataState
    #: the state dict, with tensors on the CPU.
    weights: dict[str, Any]
    #: of the transformer whose weights are here.
    transformer_config: PlainDict | None = None
    #: of the places that a run names, see `datamodules.core.origin`.
    signature: str | None = None
    #: further values of the model class.
    extras: PlainDict = field(default_factory=dict)
    #: state of the trainer, from which Lightning resumes; empty in a model folder.
    training: PlainDict = field(default_factory=dict)

    @classmethod
    def from_contents(cls, contents: Mapping[str, Any], source: str | Path) -> Checkpoint:
        """Read the contents of a Lightning checkpoint; raises an `InputError` if a part is missing or damaged."""
        if CHECKPOINT_KEY not in contents:
            raise InputError(f"{source}: not a Memory Zoo checkpoint; give one that `zoo fit` wrote")
        try:
            own = dict(contents[CHECKPOINT_KEY])
            options = {
                name: value
                for name, value in contents["hyper_parameters"].items()
                if not name.startswith("_") and name not in _OPTIMIZER_OPTIONS
            }
            keys = (CHECKPOINT_KEY, "hyper_parameters", "state_dict")
            return cls(
                model=str(own.pop("model")),
                options=options,
                spec=dict(own.pop("spec")),
                data=DataState.from_dict(own.pop("data")),
                weights=dict(contents["state_dict"]),
                transformer_config=own.pop("transformer_config"),
                signature=own.pop("signature", None),
                extras=own,
                training={key: value for key, value in contents.items() if key not in keys},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{source}: a part is missing or damaged ({reason(error)}); use another checkpoint of the run"
            ) from error

    def describe(self) -> PlainDict:
        """Return our part of a Lightning checkpoint."""
        return {
            **self.extras,
            "model": self.model,
            "spec": self.spec,
            "data": self.data.to_dict(),
            "transformer_config": self.transformer_config,
            "signature": self.signature,
        }

    def to_contents(self) -> dict[str, Any]:
        """Return the contents of a Lightning checkpoint."""
        return {
            **self.training,
            CHECKPOINT_KEY: self.describe(),
            "hyper_parameters": self.options,
            "state_dict": self.weights,
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The weights that are tensors."""
        from torch import Tensor

        return {name: value for name, value in self.weights.items() if isinstance(value, Tensor)}


def read_contents(path: Path) -> dict[str, Any]:
    """Read a checkpoint file, tensors on the CPU; raises an `InputError` if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint")

    import torch

    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not compare its checksums
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} has changed")
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no checkpoint fails in many ways
        raise InputError(
            f"{path}: truncated, damaged or no checkpoint; use another one of the run ({reason(error)[:80]})"
        ) from error
    if not isinstance(contents, dict):
        raise InputError(f"{path}: not a Memory Zoo checkpoint; give one that `zoo fit` wrote")
    return contents


@contextmanager
def explained_by(source: str | Path) -> Iterator[None]:
    """Raise errors as an `InputError` that names the file or folder from which a model is made."""
    try:
        yield
    except InputError as error:
        if str(source) in str(error):
            raise
        raise InputError(f"{source}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise InputError(
            f"{source}: damaged, or written by another version of the zoo ({type(error).__name__}: {reason(error)});"
            " use another checkpoint of the run, or that version"
        ) from error


def write_contents(contents: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint file in one step: a killed process leaves the old file or the new one."""
    import torch

    with named_disk_errors(path, "--run_dir"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, "--run_dir") as partial, _Output(partial.open("wb", buffering=0)) as file:
        try:
            torch.save(dict(contents), file)
        except RuntimeError as error:
            if file.error is None:
                raise
            raise file.error from error


class _Output(io.BufferedWriter):
    """A file that keeps the error of a write: PyTorch's writer reports a position in place of a full disk."""

    error: OSError | None = None

    def write(self, data: Buffer) -> int:
        """See `io.BufferedWriter.write`."""
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


def plain(value: object) -> Any:
    """Replace everything that `torch.load(weights_only=True)` refuses by a string."""
    return json.loads(json.dumps(value, default=str))
