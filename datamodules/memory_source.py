"""The memory of a data module: the user's own (a folder, an Elasticsearch index), or made of a table."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import lazy_instance  # type: ignore[attr-defined]

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.core.types import PlainDict
from datamodules.corpora.readers import HUB
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.options import MemoryOptions
from datamodules.retrieval import (
    EmbeddedRetriever,
    FolderMemory,
    Memory,
    Retriever,
    is_existing_index,
    is_memory,
    open_memory,
)
from datamodules.retrieval.memories.versions import is_of_model

#: What a command line starts from when it sets only `--data.retriever.similarity`.
DEFAULT_RETRIEVER: Retriever = lazy_instance(EmbeddedRetriever)


class MemorySource:
    """The memory of a data module, by its location: a folder, or `index:NAME`.

    `find` finds or builds the memory of a training. Models and predictors open it.
    """

    def __init__(self, options: MemoryOptions, retriever: Retriever, cache: Path, any_ranking: bool) -> None:
        """Configure; with `any_ranking`, see `open`."""
        self.options, self.retriever, self.cache = options, retriever, cache
        #: None until `DataModule.setup`, or that of a trained model.
        self.location: str | None = None
        #: whether a trained model had a memory of the user's, which may hold the rows of the training table.
        self.was_users = False
        self._any_ranking = any_ranking

    @property
    def is_users(self) -> bool:
        """True if the user names the memory, which may then hold the rows of the training table."""
        return self.options.memory is not None or is_existing_index(self.retriever) or self.was_users

    @property
    def is_of_model(self) -> bool:
        """True for the memory in the folder of a trained model."""
        return self.location is not None and is_of_model(Path(self.location))

    def find(self, own: Rows | None, columns: PlainDict, training: bool) -> Memory:
        """Open the memory of the preparation: the named one, or else that of `own`, built unless the cache has it.

        A table is read with `columns`, arguments of `read_table`, and only with `training`. Raises an `InputError` if
        the named memory is missing.
        """
        name = self.options.memory
        if is_existing_index(self.retriever) or self.is_of_model:
            return self.open(None if self.is_of_model else name)
        if name is not None and is_memory(name):
            return open_memory(name, self.retriever)
        if name is not None and training:
            own = _read_memory_table(name, columns)
        if own is None:
            return self.open()
        ranking = self.retriever.describe_ranking()
        description = {"rows": own.fingerprint, "back end": type(self.retriever).__name__, **ranking}
        folder = self.cache / f"memory-{fingerprint_of(description)[:16]}"
        return FolderMemory.build(own, self.retriever, folder)

    def open(
        self, path: str | None = None, version: int | None = None, retriever: Retriever | None = None
    ) -> Memory:
        """Open the memory, or another folder (`path`); `version` None = the current one.

        `retriever` ranks that other memory; None = the model's or, with `any_ranking`, the folder's own. Raises an
        `InputError` if the memory or its version is missing, or if a folder is named, and an index by the retriever.
        """
        if path is None:
            return open_memory(self.location, retriever or self.retriever, version)
        if is_existing_index(chosen := retriever or self.retriever):
            problem = f"the retriever reads the index {chosen.existing_index}"
            raise InputError(f"{path}: {problem}; omit one of both")
        return open_memory(path, retriever if self._any_ranking else chosen, version)


def _read_memory_table(name: str, columns: PlainDict) -> Rows:
    if not name.startswith(HUB) and not Path(name).exists():
        advice = "name an existing one, or build one with `zoo index`"
        raise InputError(f"data.memory={name}: no such memory folder or table; {advice}")
    rows = read_table(name, **columns)
    if not any(rows.texts):
        problem = f"no row has text in {columns['text_column']!r}"
        advice = "name the column that has it with --data.memory_text_column"
        raise InputError(f"data.memory={name}: {problem}; {advice}")
    return rows
