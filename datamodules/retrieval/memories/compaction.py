"""Deletion of what is no part of a memory any more, for good."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datamodules.core import storage
from datamodules.core.errors import DamagedError
from datamodules.core.types import PlainDict
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.dense.vector_store import VectorStore
from datamodules.retrieval.folding import text_hashes
from datamodules.retrieval.memories.versions import Version, folder_of, index_fingerprint, index_folder


def delete_unused(memory: Path, state: PlainDict, retriever: Retriever) -> None:
    """Delete the folders of killed changes, and of versions that are not kept, with their indexes."""
    storage.delete_leftovers(memory)
    kept = {folder_of(memory, number) for number in range(state["first"], state["version"] + 1)}
    leftovers = set(memory.glob("version-*")) - kept
    # Other memories may begin with the same rows: they share an index on a server.
    shared = {state["began_with"], *(_rows_fingerprint(folder) for folder in kept if leftovers)}
    for folder in leftovers:
        rows = _rows_fingerprint(folder)
        # A server completes the index of a killed change when the change is made again.
        is_unfinished = folder == folder_of(memory, state["version"] + 1)
        if rows is not None and rows not in shared and not is_unfinished:
            fingerprint = index_fingerprint(rows, retriever)
            retriever.delete(index_folder(folder, fingerprint), fingerprint)
        storage.delete(folder)


def delete_removed(memory: Path, state: PlainDict, retriever: Retriever) -> None:
    """Delete what may contain removed texts: indexes of other rankings, and the vectors of these texts."""
    stores = list(memory.glob("vectors-*"))
    hashes = []
    for number in range(state["first"], state["version"] + 1):
        version = Version.open(memory, number)
        own = version.index_folder(retriever).name
        for index in version.folder.glob("index-*"):
            if not index.name.startswith(own):
                storage.delete(index)
        if stores:
            hashes.append(text_hashes(version.rows.texts))
    for store in stores:
        VectorStore(memory, store.name.removeprefix("vectors-")).keep(np.concatenate(hashes))


def _rows_fingerprint(version: Path) -> str | None:
    """Return the fingerprint of a version's rows; None if its folder is not whole."""
    try:
        return str(storage.check_folder(version)["fingerprint"])
    except DamagedError:
        return None
