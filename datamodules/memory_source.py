"""The memory of a data module: the user's own (a folder, an Elasticsearch index), or made of a table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jsonargparse import lazy_instance  # type: ignore[attr-defined]

from datamodules.core.errors import DamagedError, InputError, excerpt
from datamodules.core.storage import Part, fingerprint_of, is_whole
from datamodules.core.types import PlainDict
from datamodules.corpora.readers import HUB
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.options import MemoryOptions, TextOptions
from datamodules.retrieval import (
    POINTER,
    EmbeddedRetriever,
    FolderMemory,
    IndexMemory,
    Memory,
    Retriever,
    check_ranking,
    first_rows,
    is_existing_index,
    is_memory,
    log_other_ranking,
    open_memory,
    read_pointer,
)

log = logging.getLogger(__name__)

#: What a command line starts from when it sets only `--data.retriever.similarity`.
DEFAULT_RETRIEVER: Retriever = lazy_instance(EmbeddedRetriever)


class MemoryLocation(NamedTuple):
    """Location of a memory, which may not be built yet; plain values, kept in checkpoints."""

    #: a folder, or `index:NAME`.
    path: str
    #: folder and fingerprint of the rows that the memory is made of; None for the user's own memory.
    rows: Part | None = None
    #: version when the model last used it: an earlier one cannot replace it.
    version: int | None = None
    #: of a memory that is made of rows: `AnyRanking.describe`.
    ranking: PlainDict | None = None

    def to_dict(self) -> PlainDict:
        """Plain values."""
        return {**self._asdict(), "rows": self.rows and list(self.rows)}

    @classmethod
    def from_dict(cls, described: PlainDict | None) -> MemoryLocation | None:
        """The location that `to_dict` described; None for None."""
        if described is None:
            return None
        path, rows, version, ranking = (described[name] for name in cls._fields)
        if not isinstance(path, str) or not isinstance(version, int | None):
            raise TypeError("the location of the memory")
        if rows is not None:
            folder, fingerprint = rows
            rows = (str(folder), str(fingerprint))
        return cls(path, rows, version, ranking)


class MemorySource:
    """Locates, builds and opens the memory of a data module."""

    def __init__(
        self,
        options: MemoryOptions,
        retriever: Retriever,
        cache: Path,
        read_table: Callable[[str], Rows],
        read_own: Callable[[], Rows | None],
        any_ranking: bool = False,
    ) -> None:
        """Configure: `read_table` reads a table that the user names, `read_own` the rows where the user names none."""
        self.options, self.retriever, self.cache = options, retriever, cache
        #: None until `locate`, `use` or `DataModule.setup`.
        self.location: MemoryLocation | None = None
        #: True for the memory of a trained model.
        self.is_trained = False
        self._read_table, self._read_own = read_table, read_own
        self._any_ranking = any_ranking
        self._opened: Memory | None = None

    @property
    def is_index(self) -> bool:
        """True for an Elasticsearch index of the user's."""
        return is_existing_index(self.retriever)

    @property
    def is_users(self) -> bool:
        """True if the user names the memory, which may then hold the rows of the training table."""
        return self.options.memory is not None or self.is_index

    def use(self, location: MemoryLocation | None) -> None:
        """Take the memory of a trained model, unless one is known already."""
        if self.location is None:
            self.location, self.is_trained = location, location is not None

    def locate(self, own: Rows | None, training: bool) -> None:
        """Determine the location of the memory, and keep the rows that it is made of: `own` unless the user names one.

        A table is read only with `training`. Raises an `InputError` if the named memory is missing.
        """
        if self.is_trained and not self.is_index:
            return
        source = self._named(training) or own
        least = self.options.num_memories if isinstance(self.options, TextOptions) else 0
        if isinstance(source, Rows | FolderMemory) and len(source) < least:
            log.info(
                "data.num_memories=%d: the memory has only %d rows, so no text has more memories",
                least,
                len(source),
            )
        if isinstance(source, FolderMemory):
            self.location = MemoryLocation(source.location(), None, source.version)
        elif isinstance(source, Memory):
            self.location = MemoryLocation(source.location())
        elif source is not None:
            ranking = self.retriever.ranking.describe()
            description = {
                "rows": source.fingerprint,
                "back end": type(self.retriever).__name__,
                **ranking,
            }
            folder, fingerprint = prepare_rows(source, self.cache)
            path = self.cache / f"memory-{fingerprint_of(description)[:16]}"
            rows = (str(self.cache / folder), fingerprint)
            self.location = MemoryLocation(str(path), rows, version=1, ranking=ranking)

    def _named(self, training: bool) -> Memory | Rows | None:
        """The memory that the user names, open; or the rows of the table that the user names."""
        if is_existing_index(self.retriever):
            return IndexMemory(self.retriever)
        name = self.options.memory
        if name is not None and (Path(name) / POINTER).exists():
            return open_memory(name, self.retriever)
        if name is None or not training:
            return None
        if not name.startswith(HUB) and not Path(name).exists():
            raise InputError(
                f"data.memory={name}: no such memory folder or table; name an existing one, or build one with"
                " `zoo index`"
            )
        return self._read_table(name)

    @property
    def opened(self) -> Memory:
        """The memory, opened once until `close`."""
        if self._opened is None:
            self._opened = self.open()
        return self._opened

    def close(self) -> None:
        """Release connections and encoders, which training does not need."""
        self._opened = None
        self.retriever.close()

    def open(
        self, path: str | None = None, version: int | None = None, retriever: Retriever | None = None
    ) -> Memory:
        """Open the memory, built if it is missing, or another folder (`path`); `version` None = the current one.

        `retriever` ranks that other memory; None = the model's or, with `any_ranking`, the folder's own. Raises an
        `InputError` if the memory or its version is missing, and cannot be built.
        """
        if is_existing_index(self.retriever):
            return open_memory(f"index:{self.retriever.existing_index}", self.retriever, version)
        if path is not None and (self.location is None or path != self.location.path):
            return open_memory(path, retriever or (None if self._any_ranking else self.retriever), version)
        if self.location is None:
            raise InputError("there is no memory: name a folder of `zoo index`, or a table (--data.memory)")
        self._build_if_missing(self.location)
        memory = open_memory(self.location.path, self.retriever, version)
        expected = self.location.version or 1
        if version is None and isinstance(memory, FolderMemory) and memory.version < expected:
            raise InputError(
                f"{self.location.path}: is at version {memory.version}, but the model last used version {expected};"
                " name the folder that has it with --data.memory (zoo predict: --memory)"
            )
        return memory

    def _build_if_missing(self, location: MemoryLocation) -> None:
        folder = Path(location.path)
        if location.rows is not None:
            if not _is_built(folder):
                check_ranking(folder, location.ranking, self.retriever)
                self._log_other_encoder(folder, location.rows[1])
                FolderMemory.build(self._rows_of(folder, location.rows), self.retriever, folder)
        elif not is_memory(location.path):
            if folder.is_dir():
                raise InputError(
                    f"{folder}: the memory is damaged ({POINTER} is missing); copy or build it again"
                )
            raise InputError(
                f"{folder}: the memory that the model last used is not there; name its folder with --data.memory"
                " (zoo predict: --memory)"
            )

    def _log_other_encoder(self, folder: Path, rows_fingerprint: str) -> None:
        """Log the memories of the same rows and options that have another encoder, because its files were replaced."""
        for pointer in sorted(folder.parent.glob(f"memory-*/{POINTER}")):
            with suppress(InputError):  # a damaged memory is not used
                is_same = first_rows(pointer.parent) == rows_fingerprint
                if is_same and read_pointer(pointer.parent)["retriever"] == self.retriever.describe():
                    log_other_ranking(pointer.parent, self.retriever, folder)

    def _rows_of(self, folder: Path, part: Part) -> Rows:
        """The rows that the memory is made of: from the cache or, if they are missing there, from their table."""
        rows, fingerprint = Path(part[0]), part[1]
        if is_whole(rows, fingerprint):
            return Rows.load(rows / "rows.arrow")
        gone = f"{folder}: no memory here, the rows to build it of are not in the cache ({rows}), and"
        build = "build a memory with `zoo index` and name it"
        try:
            source = self._named(training=True) or self._read_own()
        except InputError as error:
            raise InputError(f"{gone} their table cannot be read ({excerpt(error)}); {build}") from error
        if not isinstance(source, Rows) or source.fingerprint != fingerprint:
            raise InputError(f"{gone} their table has other rows now; {build}")
        return source


def _is_built(folder: Path) -> bool:
    """Return True for a folder with a memory; a damaged one is built again."""
    if not (folder / POINTER).exists():
        return False
    try:
        read_pointer(folder)
    except DamagedError as damage:
        log.warning("%s: damaged; it is built again (%s)", folder, damage.__cause__)
        return False
    return True
