"""Memories opened by their locations."""

from __future__ import annotations

from pathlib import Path

from datamodules.core.errors import InputError
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.memories.folder_memory import FolderMemory, changed_ranking
from datamodules.retrieval.memories.index_memory import IndexMemory
from datamodules.retrieval.memories.memory import Memory
from datamodules.retrieval.memories.versions import STATE, pointer_of, read_pointer
from datamodules.retrieval.registry import is_existing_index, make_retriever


def is_memory(location: str | None) -> bool:
    """Return True for the folder of a memory, and for an index of the user's."""
    return location is not None and (location.startswith("index:") or pointer_of(Path(location)).exists())


def open_memory(
    location: str, retriever: Retriever | None = None, version: int | None = None, pointer: Path | None = None
) -> Memory:
    """Open a memory by its `Memory.location`, with the retriever and at the version given or stored in its folder.

    See `FolderMemory` for the pointer.
    """
    if location.startswith("index:"):
        if retriever is None or not is_existing_index(retriever):
            raise InputError(
                f"{location}: name it with --data.retriever ElasticsearchRetriever and its index"
            )
        if version is not None:
            raise InputError(f"{location}: an index of yours has no versions; omit the version")
        return IndexMemory(retriever)
    folder = Path(location)
    state = read_pointer(folder, pointer)
    if retriever is None:
        # A model folder has the encoders of its retriever.
        is_of_model = (pointer or pointer_of(folder)).name == STATE
        retriever = make_retriever(state["retriever"], folder.parent if is_of_model else None)
    # Not that of the stored retriever: its encoder's files may have changed since.
    if change := changed_ranking(state["ranking"], retriever):
        raise InputError(f"{folder}: {change}; make them equal or build another memory with `zoo index`")
    return FolderMemory(folder, retriever, version, pointer)
