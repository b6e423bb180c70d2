"""The memory of a data module: which one it is, built when it is first needed, open to others to grow.

A memory is the user's own (a folder, an Elasticsearch index), or it is made of a table: of one that the user names,
or of the training texts. Of a table, the rows are kept in the cache and the memory is built of them when it is first
asked something; a model that never asks costs no index.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jsonargparse import lazy_instance  # type: ignore[attr-defined]

from datamodules.core.errors import DamagedError, InputError, excerpt
from datamodules.core.storage import fingerprint_of, is_whole
from datamodules.corpora.readers import HUB
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows, prepare_rows
from datamodules.corpora.table import read_table
from datamodules.retrieval import (
    POINTER,
    EmbeddedRetriever,
    FolderMemory,
    IndexMemory,
    Memory,
    Retriever,
    is_existing_index,
    is_memory,
    open_memory,
    read_pointer,
)

log = logging.getLogger(__name__)

#: What a command line starts from when it sets `--data.retriever.similarity` alone.
DEFAULT_RETRIEVER: Retriever = lazy_instance(EmbeddedRetriever)


class MemoryPart:
    """Finds, builds and opens the memory."""

    options: Any
    cache: Path

    #: whether a trained model can use another memory that ranks in a way of its own.
    any_ranking: ClassVar[bool] = False

    def __init__(
        self,
        memory: str | None = None,
        memory_text_column: Column | list[Column] | None = None,
        retriever: Retriever = DEFAULT_RETRIEVER,
        **shared: Any,
    ) -> None:
        """Choose the memory.

        Args:
            memory: where memories come from: None = the training texts; a table (with `memory_text_column`); a
                folder that `zoo index` built. A retriever with an index of its own
                (`ElasticsearchRetriever(index=...)`) is its own memory.
            memory_text_column: text of the memory table; None = as in the training table.
            retriever: back end and ranking: EmbeddedRetriever, ElasticsearchRetriever, DenseRetriever, ...
            **shared: options of the other parts.
        """
        super().__init__(**shared)
        # A retriever holds an open index: the default is a new one for each data module.
        self.retriever = EmbeddedRetriever() if retriever is DEFAULT_RETRIEVER else retriever
        #: where the memory is, or will be when it is first needed; after `setup` or `use_state`.
        self.memory_location: str | None = None
        #: folder and fingerprint of the table that it is made of, if it is not the user's own.
        self.memory_rows: tuple[str, str] | None = None
        #: its version when it was last used for the model: an earlier one can't stand in for it.
        self.memory_version: int | None = None
        self._memory: Memory | None = None

    # --- what a kind of data says of its memory ---

    @property
    @abstractmethod
    def has_memory(self) -> bool:
        """Whether a memory belongs to the data, now or when predictions ask for it."""

    @property
    @abstractmethod
    def retrieves(self) -> bool:
        """Whether preparing the data asks the memory for something."""

    @abstractmethod
    def memory_columns(self) -> dict[str, Any]:
        """How the table is read that the memory began with: arguments of `read_table`."""

    @abstractmethod
    def own_memory(self, tables: Mapping[str, Any]) -> Rows | None:
        """What the memory is made of where the user names none: rows of the tables that were read, if they do."""

    @abstractmethod
    def read_tables(self, wanted: Sequence[str]) -> Mapping[str, Any]:
        """Read the wanted splits."""

    def check_memory_size(self, rows: int) -> None:
        """Refuse a memory that is too small, before it is built."""
        del rows

    def check_memory(self, memory: Memory) -> None:
        """Refuse a memory that a trained model can't use; its spec is known."""
        del memory

    @property
    def memory_labels(self) -> list[str] | None:
        """The labels that rows of the memory may have for a trained model; None = any."""
        return None

    # --- before training ---

    def locate_memory(self, tables: Mapping[str, Any]) -> None:
        """Say where the memory is or will be, and keep the rows that it is made of; nothing is built.

        Args:
            tables: those that were read, by split.

        Raises:
            InputError: what the user named as memory is none.
        """
        found = self._given_memory("train" in tables)
        if found is None:
            found = self.own_memory(tables)
        if isinstance(found, Rows | FolderMemory):
            self.check_memory_size(len(found))
        if isinstance(found, Memory):
            self.memory_location, self.memory_rows = found.location(), None
            self.memory_version = found.version if isinstance(found, FolderMemory) else None
        elif found is not None:
            description = {
                "rows": found.fingerprint,
                "back end": type(self.retriever).__name__,
                **self.retriever.ranking.describe(),
            }
            self.memory_location = str(self.cache / f"memory-{fingerprint_of(description)[:16]}")
            name, fingerprint = prepare_rows(found, self.cache)
            self.memory_rows, self.memory_version = (str(self.cache / name), fingerprint), 1

    def _given_memory(self, training: bool) -> Memory | Rows | None:
        """The memory that the user or a trained model names, open; or the rows that it is to be made of."""
        if is_existing_index(self.retriever):
            return IndexMemory(self.retriever)
        given = self.options.memory
        if given is None and not training:
            return None
        if given is None or (Path(given) / POINTER).exists():
            return None if given is None else open_memory(given, self.retriever)
        if not given.startswith(HUB) and not Path(given).exists():
            raise InputError(
                f"data.memory={given}: no such memory folder or table; name the one to use, or build one with"
                " `zoo index`"
            )
        columns = self.memory_columns()
        rows = read_table(given, **columns)
        if not any(rows.texts):
            raise InputError(
                f"data.memory={given}: no row has text in {columns['text_column']!r}; name the column that has it with"
                " --data.memory_text_column"
            )
        return rows

    def use_memory_of(self, state: Mapping[str, Any]) -> None:
        """Take the memory that a trained model's state, or a plan, names; unless there is one already."""
        if self.memory_location is None:
            rows = state.get("memory_rows")
            self.memory_location, self.memory_rows = state["memory"], rows and (rows[0], rows[1])
            self.memory_version = state.get("memory_version")

    # --- whenever it is needed ---

    @property
    def opened_memory(self) -> Memory:
        """The memory, opened once until `close_memory`."""
        if self._memory is None:
            self._memory = self.open_memory()
        return self._memory

    def close_memory(self) -> None:
        """Let go of the memory: training needs neither its connections nor what an encoder takes."""
        self._memory = None
        self.retriever.close()

    def open_memory(
        self, location: str | None = None, version: int | None = None, retriever: Retriever | None = None
    ) -> Memory:
        """The memory; it is built when it is first needed.

        Args:
            location: a memory folder to use instead of the model's.
            version: of a memory that has grown; None opens the current one.
            retriever: back end and ranking of that other memory; None = the model's or, where any ranking will
                do, those that the folder was built with.

        Raises:
            InputError: there is no memory, and nothing to build it of; or no such version.
        """
        if is_existing_index(self.retriever):
            return open_memory(f"index:{self.retriever.existing_index}", self.retriever, version)
        if location is not None and location != self.memory_location:
            otherwise = None if self.any_ranking else self.retriever
            return open_memory(location, retriever or otherwise, version)
        if self.memory_location is None:
            raise InputError(
                "there is no memory: name a folder that `zoo index` built, or a table (--data.memory)"
            )
        folder = Path(self.memory_location)
        if self.memory_rows is not None and not _has_pointer(folder):
            FolderMemory.build(self._rows_of_memory(folder), self.retriever, folder)
        elif not is_memory(self.memory_location):
            if folder.is_dir():
                raise InputError(
                    f"{folder}: the memory is damaged ({POINTER} is missing); copy, download or build it again"
                )
            raise InputError(
                f"{folder}: the memory that the model was last used with is not there; name its place with"
                " --data.memory (zoo predict: --memory)"
            )
        memory = open_memory(self.memory_location, self.retriever, version)
        if (
            version is None
            and isinstance(memory, FolderMemory)
            and memory.version < (self.memory_version or 1)
        ):
            raise InputError(
                f"{folder}: is at version {memory.version}, but the model was last used with version"
                f" {self.memory_version}; name the folder that has it with --data.memory (zoo predict: --memory)"
            )
        return memory

    def _rows_of_memory(self, folder: Path) -> Rows:
        """The table that the memory is made of: from the cache or, where it is gone from there, read again."""
        assert self.memory_rows is not None
        rows, fingerprint = Path(self.memory_rows[0]), self.memory_rows[1]
        if is_whole(rows, fingerprint):
            return Rows.load(rows / "rows.arrow")
        gone = f"{folder}: no memory here, the rows to build it of are gone from the cache ({rows}), and"
        build = "build a memory with `zoo index` and name it"
        try:
            found = self._given_memory(training=True) or self.own_memory(self.read_tables(["train"]))
        except InputError as error:
            raise InputError(f"{gone} their table can't be read again ({excerpt(error)}); {build}") from error
        if not isinstance(found, Rows) or found.fingerprint != fingerprint:
            raise InputError(f"{gone} their table holds others now; {build}")
        return found


def _has_pointer(folder: Path) -> bool:
    """Whether a memory of the cache is there; what is damaged is made again."""
    if not (folder / POINTER).exists():
        return False
    try:
        read_pointer(folder)
    except DamagedError as damage:
        log.warning("%s: damaged; it is made again (%s)", folder, damage.__cause__)
        return False
    return True
