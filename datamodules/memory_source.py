"""The memory of a data module: the user's own (a folder, an Elasticsearch index), or made of a table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from jsonargparse import lazy_instance  # type: ignore[attr-defined]

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.corpora.readers import HUB
from datamodules.corpora.rows import Rows
from datamodules.options import MemoryOptions, TextOptions
from datamodules.retrieval import (
    EmbeddedRetriever,
    FolderMemory,
    IndexMemory,
    Memory,
    Retriever,
    is_existing_index,
    is_memory,
    open_memory,
)

log = logging.getLogger(__name__)

#: What a command line starts from when it sets only `--data.retriever.similarity`.
DEFAULT_RETRIEVER: Retriever = lazy_instance(EmbeddedRetriever)


class MemorySource:
    """The memory of a data module, by its location: a folder, or `index:NAME`.

    `DataModule` makes it. `locate` finds or builds the memory of a training; `use` takes that of a trained model. The
    preparation, models and predictors open it.
    """

    def __init__(
        self,
        options: MemoryOptions,
        retriever: Retriever,
        cache: Path,
        read_table: Callable[[str], Rows],
        any_ranking: bool = False,
    ) -> None:
        """Configure; `read_table` reads a table that the user names. With `any_ranking`, see `open`."""
        self.options, self.retriever, self.cache = options, retriever, cache
        #: None until `locate`, `use` or `DataModule.setup`.
        self.location: str | None = None
        #: of a trained model: the file that names the current version, see `FolderMemory`.
        self.pointer: Path | None = None
        #: whether a trained model had a memory of the user's, which may hold the rows of the training table.
        self.was_users = False
        self._read_table, self._any_ranking = read_table, any_ranking
        self._opened: Memory | None = None

    @property
    def is_index(self) -> bool:
        """True for an Elasticsearch index of the user's."""
        return is_existing_index(self.retriever)

    @property
    def is_users(self) -> bool:
        """True if the user names the memory, which may then hold the rows of the training table."""
        return self.options.memory is not None or self.is_index or self.was_users

    def use(self, folder: Path, pointer: Path) -> None:
        """Take the memory of a trained model."""
        self.location, self.pointer, self._opened = str(folder), pointer, None

    def locate(self, own: Rows | None, training: bool) -> None:
        """Find the memory that the user names, or else build that of `own` in the cache, unless it is there.

        A table is read only with `training`. Raises an `InputError` if the named memory is missing.
        """
        if self.pointer is not None and not self.is_index:
            return
        source = self._named(training) or own
        least = self.options.num_memories if isinstance(self.options, TextOptions) else 0
        if isinstance(source, Rows | FolderMemory) and len(source) < least:
            log.info(
                "data.num_memories=%d: the memory has only %d rows, so no text has more memories",
                least,
                len(source),
            )
        if isinstance(source, Rows):
            description = {
                "rows": source.fingerprint,
                "back end": type(self.retriever).__name__,
                **self.retriever.ranking.describe(),
            }
            folder = self.cache / f"memory-{fingerprint_of(description)[:16]}"
            source = FolderMemory.build(source, self.retriever, folder)
        if source is not None:
            self.location, self._opened = source.location(), source

    def _named(self, training: bool) -> Memory | Rows | None:
        """Return the memory that the user names, open; or the rows of the table that the user names."""
        if is_existing_index(self.retriever):
            return IndexMemory(self.retriever)
        name = self.options.memory
        if name is not None and is_memory(name):
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
    def is_there(self) -> bool:
        """True if the located memory is an index, or a folder that exists."""
        if self.location is None:
            return False
        return self.is_index or is_memory(self.location)

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
        """Open the memory, or another folder (`path`); `version` None = the current one.

        `retriever` ranks that other memory; None = the model's or, with `any_ranking`, the folder's own. Raises an
        `InputError` if the memory or its version is missing.
        """
        if is_existing_index(self.retriever):
            return open_memory(f"index:{self.retriever.existing_index}", self.retriever, version)
        if path is not None:
            return open_memory(path, retriever or (None if self._any_ranking else self.retriever), version)
        if self.location is None:
            raise InputError("there is no memory: name a folder of `zoo index`, or a table (--data.memory)")
        return open_memory(self.location, self.retriever, version, self.pointer)
