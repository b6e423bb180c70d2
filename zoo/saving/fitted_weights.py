"""Weights and members that were fitted after the training, to a version of a memory: files next to the model.

An entry of `weights.json` is used from its version of the memory until the next entry: an old version keeps its
predictions. It names the file of its members, which is written before it and never changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import xxhash

from datamodules.core.errors import DamagedError
from datamodules.core.storage import (
    checksum_of,
    fingerprint_of,
    load_json,
    named_disk_errors,
    new_file,
    write_json,
)
from datamodules.core.types import PlainDict
from zoo.saving.model_folder import with_tensors, without_tensors

if TYPE_CHECKING:
    from datamodules.base import DataModule
    from datamodules.corpora.rows import Rows
    from datamodules.retrieval import Memory

FILE = "weights.json"
#: Name of the tensor that holds everything but tensors, as JSON.
_PLAIN = "plain"
#: What a file of values holds; its name begins with it.
FileKind: TypeAlias = Literal["members", "held_out"]


@runtime_checkable
class FitsWeights(Protocol):
    """A model whose members, and their weights, can be fitted again without training."""

    def describe_weights(self) -> PlainDict | None:
        """Return the weights as plain values; None before they were fitted."""

    def use_weights(self, weights: PlainDict) -> None:
        """Replace the weights."""

    def describe_held_out(self) -> PlainDict | None:
        """Return the held-out rows of the last fit (see `HeldOutRows`); None if it has none."""

    def describe_members(self) -> PlainDict:
        """Return the values of the members as plain values and tensors."""

    def use_members(self, values: PlainDict) -> None:
        """Replace the values of the members."""

    def learned_by_gradients(self) -> str | None:
        """The part that only a training can fit again; None if there is none."""

    def refit(self, data: DataModule, memory: Memory | None, rows: Rows | None, members: bool = False) -> str:
        """Fit the weights again on labelled rows, None = only on rows of the memory; return them as text.

        `members` are fitted first, to the memory's rows.
        """


class Entry(NamedTuple):
    """Weights for one memory."""

    #: see `SavedModel.memory_key`.
    memory: str
    #: version of the memory; 0 for an index of the user's.
    version: int
    #: fingerprint of the weights that the training fitted.
    trained: str
    #: plain values, as the model describes its weights.
    weights: PlainDict
    #: checksum of the file of the members; None = those of the training.
    members: str | None = None
    #: checksum of the file of the labelled rows; None = those of the training.
    held_out: str | None = None

    def files(self) -> list[tuple[FileKind, str]]:
        """Return kind and checksum of the files that the entry names."""
        named: list[tuple[FileKind, str | None]] = [("members", self.members), ("held_out", self.held_out)]
        return [(kind, checksum) for kind, checksum in named if checksum is not None]


def read_entries(file: Path) -> list[Entry]:
    """Return all entries of a file, oldest first; none if it does not exist."""
    try:
        contents = load_json(file)
        if contents["checksum"] != fingerprint_of({"entries": contents["entries"]}):
            raise ValueError("its checksum has changed")
        return [Entry(*entry) for entry in contents["entries"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"{file}: damaged; delete it to use the trained weights, or run `zoo memory tune` again after that"
        ) from error


def add_entry(file: Path, entry: Entry) -> None:
    """Write an entry, which replaces one of the same memory and version, in one step."""
    others = [other for other in read_entries(file) if other[:3] != entry[:3]]
    _write_entries(file, [*others, entry])


def _write_entries(file: Path, entries: list[Entry]) -> None:
    lists = [list(each) for each in entries]
    write_json(file, {"entries": lists, "checksum": fingerprint_of({"entries": lists})})


def entry_for(entries: list[Entry], memory: str, version: int, trained: str) -> Entry | None:
    """Return the latest entry that was fitted to a memory up to a version; None = the weights of the training."""
    usable = [
        entry
        for entry in entries
        if (entry.memory, entry.trained) == (memory, trained) and entry.version <= version
    ]
    return max(usable, key=lambda entry: entry.version) if usable else None


def delete_before(locate: Callable[[str], Path], memory: str, first: int) -> Entry | None:
    """Delete the entries that no version of a memory from `first` on uses; return the one that the first uses."""
    file = locate(FILE)
    entries = read_entries(file)
    used = [entry_for(entries, memory, first, trained) for trained in {entry.trained for entry in entries}]
    kept = [each for each in entries if each.memory != memory or each.version >= first or each in used]
    if len(kept) < len(entries):
        _write_entries(file, kept)
    unused = {file for each in entries for file in each.files()} - {
        file for each in kept for file in each.files()
    }
    for kind, checksum in unused:
        locate(values_name(kind, checksum)).unlink(missing_ok=True)
    return next((each for each in used if each is not None), None)


def values_name(kind: FileKind, checksum: str) -> str:
    """Return the name of the file of values with this checksum."""
    return f"{kind}-{checksum[:16]}.safetensors"


def write_values(kind: FileKind, values: PlainDict, locate: Callable[[str], Path]) -> str:
    """Write values to the file that `locate` finds by its name, and return its checksum."""
    import torch
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    plain = json.dumps(without_tensors(values, "", tensors)).encode()
    contents = save({**tensors, _PLAIN: torch.frombuffer(bytearray(plain), dtype=torch.uint8)})
    checksum = xxhash.xxh3_128_hexdigest(contents)
    path = locate(values_name(kind, checksum))
    with named_disk_errors(path, "the model's folder"), new_file(path) as partial:
        partial.write_bytes(contents)
    return checksum


def whole_values(kind: FileKind, checksum: str, locate: Callable[[str], Path]) -> Path:
    """Return the path of a file of values; raise a `DamagedError` if it is missing or damaged."""
    path = locate(values_name(kind, checksum))
    if not path.is_file() or checksum_of(path) != checksum:
        raise DamagedError(
            f"{path}: missing or damaged; restore it, or delete {locate(FILE)} to use the trained members, and run"
            " `zoo memory tune` (where members were fitted: with --refit true) again after that"
        )
    return path


def read_values(kind: FileKind, checksum: str, locate: Callable[[str], Path]) -> PlainDict:
    """Return the values that `write_values` wrote; nothing in the file is executed."""
    from safetensors.torch import load_file

    tensors = load_file(whole_values(kind, checksum, locate))
    plain = json.loads(tensors.pop(_PLAIN).numpy().tobytes())
    values: PlainDict = with_tensors(plain, tensors)
    return values
