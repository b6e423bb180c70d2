"""A table that has been prepared: its parts are cache folders, which every process maps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from typing_extensions import Self

from datamodules.core.storage import Part, check_folder
from datamodules.corpora.rows import Rows
from datamodules.duplicates import DuplicateMarks

T = TypeVar("T")


class Origin(NamedTuple):
    """The folders of a prepared table."""

    cache: Path
    #: name -> folder in the cache and fingerprint.
    parts: Mapping[str, Part]
    #: the user's table, for messages.
    source: str

    def folder(self, name: str) -> Path:
        """The folder of a part; raises an `InputError` if it is missing or damaged."""
        folder, fingerprint = self.parts[name]
        check_folder(self.cache / folder, fingerprint)
        return self.cache / folder

    def rows(self, name: str) -> Rows:
        """Map a part that `prepare_rows` made."""
        return Rows.load(self.folder(name) / "rows.arrow", self.source)

    def open(self, name: str, open_part: Callable[[Path, str], T]) -> T:
        """Map a part with a function of its folder and fingerprint."""
        folder, fingerprint = self.parts[name]
        return open_part(self.cache / folder, fingerprint)

    def open_optional(self, name: str, open_part: Callable[[Path, str], T]) -> T | None:
        """Map a part that some tables have; None where it is missing."""
        return self.open(name, open_part) if name in self.parts else None


@dataclass(frozen=True, kw_only=True)
class PreparedSplit:
    """One table, ready for batches."""

    #: None for rows that were prepared in memory (prediction).
    origin: Origin | None = None
    #: the rows that have duplicates elsewhere; None where nothing is compared.
    duplicates: DuplicateMarks | None = None

    @classmethod
    def open(cls, origin: Origin) -> Self:
        """Map a prepared table; raises an `InputError` if a part is missing or damaged."""
        duplicates = origin.open_optional("duplicates", DuplicateMarks.open)
        return replace(cls.map_parts(origin), origin=origin, duplicates=duplicates)

    @classmethod
    @abstractmethod
    def map_parts(cls, origin: Origin) -> Self:
        """Map the parts of the kind."""

    def __reduce_ex__(self, protocol: object) -> str | tuple[Callable[[Origin], Self], tuple[Origin]]:
        # A worker that is spawned (not forked) receives its dataset pickled: it maps the same files.
        if self.origin is None:
            return super().__reduce_ex__(protocol)  # type: ignore[arg-type,return-value]
        return type(self).open, (self.origin,)
