"""A table that has been prepared: its parts are cache folders, which every process maps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Self

from datamodules.core.storage import Part
from datamodules.core.types import PlainDict
from datamodules.duplicates import DuplicateMarks


class Origin(NamedTuple):
    """Where a prepared table is kept."""

    cache: Path
    #: name -> folder in the cache and fingerprint.
    parts: Mapping[str, Part]
    #: the user's table, for messages.
    source: str

    def folder(self, name: str) -> tuple[Path, str]:
        """Path and fingerprint of a part."""
        folder, fingerprint = self.parts[name]
        return self.cache / folder, fingerprint

    def to_dict(self) -> PlainDict:
        """Plain values, from which `from_dict` makes the origin again."""
        return {"source": self.source, "parts": {name: list(part) for name, part in self.parts.items()}}

    @classmethod
    def from_dict(cls, cache: Path, described: Mapping[str, PlainDict]) -> Origin:
        """The origin that `to_dict` described."""
        parts = {name: (part[0], part[1]) for name, part in described["parts"].items()}
        return cls(cache, parts, str(described["source"]))


class PreparedSplit:
    """One table, ready for batches."""

    #: None for rows that were prepared in memory (prediction).
    origin: Origin | None
    #: which rows have duplicates elsewhere; None where nothing is measured.
    duplicates: DuplicateMarks | None = None

    @classmethod
    @abstractmethod
    def open(cls, origin: Origin) -> Self:
        """Map the parts of a prepared table.

        Raises:
            InputError: a part is missing or damaged.
        """

    def __reduce_ex__(self, protocol: object) -> str | tuple[Callable[[Origin], Self], tuple[Origin]]:
        # A worker that is spawned (not forked) receives its dataset pickled: it maps the same files.
        if self.origin is None:
            return super().__reduce_ex__(protocol)  # type: ignore[arg-type,return-value]
        return type(self).open, (self.origin,)
