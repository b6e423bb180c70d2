"""The part of a model folder that changes after the training: `state.json`, and the files that it names.

Fitted values are plain values with tensors among them: the tensors go to safetensors, the rest to JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from datamodules.core.errors import DamagedError, InputError
from datamodules.core.files import load_tensors
from datamodules.core.storage import checksum_of, named_disk_errors, new_file
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from torch import Tensor

_FILE = re.compile(r"(weights|members|held_out)-[0-9a-f]{32}\.safetensors", re.ASCII)
#: Name of the tensor that holds everything but tensors, as JSON.
_PLAIN = "plain"
#: In the plain values, the key of a tensor's name.
_TENSOR = "tensor"


class FittedFiles(NamedTuple):
    """Files of the values that were fitted to a version of the memory; None = those of the training.

    `zoo fit` and `zoo memory tune` write the files before the state that names them, and they never change.
    """

    weights: str | None = None
    members: str | None = None
    held_out: str | None = None


class State(NamedTuple):
    """The pointer of a model folder: the current version of its memory, and the fitted values.

    Edits of the memory and `zoo memory tune` switch it in one step. Every command that opens the folder reads it.
    """

    #: number of the current version; None without a memory of its own.
    version: int | None
    #: version of the memory -> values that are used from this version on.
    fitted: Mapping[int, FittedFiles]

    @classmethod
    def parse(cls, values: PlainDict, place: str) -> State:
        """Return the contents of the file; raise an `InputError` that names a wrong value."""
        memory, fitted = values.get("memory"), values.get("fitted", {})
        version = memory.get("version") if isinstance(memory, dict) else None
        if not isinstance(fitted, dict):
            raise InputError(f"{place}: 'fitted' is a {type(fitted).__name__}; copy the folder again")
        for key, value in fitted.items():
            if not re.fullmatch(r"\d{1,9}", key, re.ASCII):
                raise InputError(f"{place}: {key!r} is not a version; copy the folder again")
            if not isinstance(value, dict) or value.keys() != {*FittedFiles._fields}:
                raise InputError(f"{place}: 'fitted' has other names than weights, members, held_out")
            for name in value.values():
                if name is not None and not (isinstance(name, str) and _FILE.fullmatch(name)):
                    raise InputError(f"{place}: {name!r} is not the name of a file of fitted values")
        return cls(version, {int(key): FittedFiles(**value) for key, value in fitted.items()})

    def describe_fitted(self) -> PlainDict:
        """Return the key `fitted` of the file."""
        return {str(version): fitted._asdict() for version, fitted in sorted(self.fitted.items())}

    def fitted_to(self, version: int | None) -> FittedFiles:
        """Return the values for a version of the memory: the latest that were fitted up to it."""
        usable = [each for each in self.fitted if each <= (version or 0)]
        return self.fitted[max(usable)] if usable else FittedFiles()

    def with_fitted(self, version: int, fitted: FittedFiles) -> State:
        """Return a state with values for a version of the memory."""
        return self._replace(fitted={**self.fitted, version: fitted})

    def since(self, first: int) -> State:
        """Return a state with the values that the versions of the memory from `first` on use."""
        kept = {version: fitted for version, fitted in self.fitted.items() if version > first}
        used = self.fitted_to(first)
        return self._replace(fitted={first: used, **kept} if used != FittedFiles() else kept)


def write_values(folder: Path, kind: str, values: object) -> str:
    """Write plain values and tensors into the folder of fitted values, and return the name of their file."""
    import torch
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    plain = json.dumps(without_tensors(values, "", tensors)).encode()
    contents = save({**tensors, _PLAIN: torch.frombuffer(bytearray(plain), dtype=torch.uint8)})
    name = f"{kind}-{xxhash.xxh3_128_hexdigest(contents)}.safetensors"
    with named_disk_errors(folder, "the model's folder"):
        folder.mkdir(exist_ok=True)
    with named_disk_errors(folder / name, "the model's folder"), new_file(folder / name) as partial:
        partial.write_bytes(contents)
    return name


def whole_file(folder: Path, name: str) -> Path:
    """Return the path of a file of fitted values; raise a `DamagedError` if it is missing or damaged."""
    path = folder / name
    if not path.is_file() or checksum_of(path) != path.stem.rpartition("-")[2]:
        raise DamagedError(
            f"{path}: missing or damaged; restore it, use an earlier version of the memory (--memory_version), or copy"
            " the folder again"
        )
    return path


def read_values(folder: Path, name: str) -> Any:
    """Return what `write_values` wrote."""
    tensors = load_tensors(whole_file(folder, name), "copy the folder again")
    plain = json.loads(tensors.pop(_PLAIN).numpy().tobytes())
    return with_tensors(plain, tensors)


def without_tensors(value: object, name: str, tensors: dict[str, Tensor]) -> Any:
    """Replace each tensor by its name, and add it to `tensors`."""
    from torch import Tensor

    if isinstance(value, Tensor):
        # Tensors that share memory are copied: safetensors has no views.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):
        return {
            str(key): without_tensors(item, f"{name}.{key}".lstrip("."), tensors)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    return value


def with_tensors(value: object, tensors: dict[str, Tensor]) -> Any:
    """Replace the names that `without_tensors` has put in the place of tensors by these."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: with_tensors(item, tensors) for key, item in value.items()}
    return [with_tensors(item, tensors) for item in value] if isinstance(value, list) else value
