"""A table that has been prepared: its parts lie in folders of the cache, and are mapped from there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class PreparedSplit:
    """One table, ready for batches; its class method `open` maps what is in the cache."""

    #: cache folder, and folder name and fingerprint of each part; None for rows that came just now.
    origin: tuple[Path, Mapping[str, Any]] | None

    @property
    def parts(self) -> Mapping[str, Any]:
        """What `TextDataModule.open_split` needs to open it again: plain values, of which those that are lists or
        tuples are name and fingerprint of a folder in the cache."""
        assert self.origin is not None
        return self.origin[1]

    @classmethod
    @abstractmethod
    def open(cls, cache: Path, parts: Mapping[str, Any]) -> Any:
        """Map what was prepared.

        Raises:
            InputError: a part is missing or damaged.
        """

    @staticmethod
    def folders(cache: Path, parts: Mapping[str, Any]) -> dict[str, tuple[Path, str]]:
        """Folder and fingerprint of each part that is kept in one."""
        return {name: (cache / part[0], part[1]) for name, part in parts.items() if name != "source"}

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A worker that is spawned (not forked) gets its data set pickled: let it map the same files.
        return super().__reduce_ex__(protocol) if self.origin is None else (type(self).open, self.origin)
