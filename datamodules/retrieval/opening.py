"""Memories and retrievers from what was noted down about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from datamodules.core.errors import InputError
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.memories.folder_memory import POINTER, FolderMemory, read_pointer
from datamodules.retrieval.memories.index_memory import IndexMemory
from datamodules.retrieval.memories.memory import Memory

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever

# Imported when one is made: each brings packages that the others do without.
_MODULES = {
    "DenseRetriever": "datamodules.retrieval.dense.retriever",
    "ElasticsearchDenseRetriever": "datamodules.retrieval.elasticsearch.dense_retriever",
    "ElasticsearchRetriever": "datamodules.retrieval.elasticsearch.retriever",
    "EmbeddedRetriever": "datamodules.retrieval.embedded.retriever",
    "FusedRetriever": "datamodules.retrieval.fused",
}


def is_existing_index(retriever: Retriever) -> TypeGuard[ElasticsearchRetriever]:
    """True for a retriever that reads an Elasticsearch index of the user's."""
    return retriever.existing_index is not None


def is_memory(location: str | None) -> bool:
    """Whether a memory is there already: a folder that was built, or an index of the user's."""
    return location is not None and (location.startswith("index:") or (Path(location) / POINTER).exists())


def load_all_retrievers() -> None:
    """Import every kind of retriever, so that a command line finds them by their names."""
    for module in _MODULES.values():
        import_module(module)


def make_retriever(description: Mapping[str, Any]) -> Retriever:
    """The retriever that `Retriever.describe` described, in a file: its server is none that the user named."""
    name = str(description["class_path"]).rpartition(".")[2]
    arguments = dict(description["init_args"])
    if "retrievers" in arguments:
        arguments["retrievers"] = [make_retriever(member) for member in arguments["retrievers"]]
    made: Callable[..., Retriever] = getattr(import_module(_MODULES[name]), name)
    retriever = made(**arguments)
    for server in servers_of(retriever):
        server.trust([])
    return retriever


def servers_of(retriever: Retriever) -> Iterator[Any]:
    """The connections of a retriever and of those that it asks."""
    if (server := getattr(retriever, "server", None)) is not None:
        yield server
    for member in getattr(retriever, "retrievers", ()):
        yield from servers_of(member)


def open_memory(location: str, retriever: Retriever | None = None, version: int | None = None) -> Memory:
    """The memory at a location that `Memory.location` gave, or at a folder.

    Args:
        location: a folder that `FolderMemory.build` made, or `index:NAME`.
        retriever: back end and ranking; None takes those that the folder was built with.
        version: of a memory that has grown; None opens the current one.

    Raises:
        InputError: nothing there, no such version, or built with another ranking than the retriever's.
    """
    if location.startswith("index:"):
        if retriever is None or not is_existing_index(retriever):
            raise InputError(
                f"{location}: needs --data.retriever ElasticsearchRetriever with --data.retriever.index"
            )
        if version is not None:
            raise InputError(f"{location}: an index of yours has no versions; leave the version out")
        return IndexMemory(retriever)
    folder = Path(location)
    pointer = read_pointer(folder)
    built_with = make_retriever(pointer["retriever"])
    if retriever is None:
        retriever = built_with
    # Noted down since an encoder's files may change in their place.
    built_for = pointer["ranking"]
    if retriever.ranking.describe() != built_for:
        raise InputError(
            f"{folder}: the memory was built for {built_for}, but the retriever is set to"
            f" {retriever.ranking.describe()}; make them equal or build another memory with `zoo index`"
        )
    return FolderMemory(folder, retriever, version)
