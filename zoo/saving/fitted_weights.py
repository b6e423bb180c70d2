"""Weights that were fitted after the training, to a version of a memory: a file next to the model.

An entry is used from its version of the memory until the next entry: an old version keeps its predictions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from datamodules.core.errors import DamagedError
from datamodules.core.storage import fingerprint_of, load_json, write_json
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from datamodules.base import AnyDataModule
    from datamodules.corpora.rows import Rows
    from datamodules.retrieval import Memory

FILE = "weights.json"


@runtime_checkable
class FitsWeights(Protocol):
    """A model whose members have weights that can be fitted again without training."""

    def describe_weights(self) -> PlainDict | None:
        """Return the weights as plain values; None before they were fitted."""

    def use_weights(self, weights: PlainDict) -> None:
        """Replace the weights."""

    def refit(self, data: AnyDataModule, memory: Memory | None, rows: Rows) -> str:
        """Fit the weights again on labelled rows, and return them and their accuracy as text."""


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
    entries = [list(each) for each in (*others, entry)]
    write_json(file, {"entries": entries, "checksum": fingerprint_of({"entries": entries})})


def weights_for(entries: list[Entry], memory: str, version: int, trained: str) -> PlainDict | None:
    """Return the latest weights that were fitted to a memory up to a version; None = those of the training."""
    usable = [
        entry
        for entry in entries
        if (entry.memory, entry.trained) == (memory, trained) and entry.version <= version
    ]
    return max(usable, key=lambda entry: entry.version).weights if usable else None
