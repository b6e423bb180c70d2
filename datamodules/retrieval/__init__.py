"""Finding memories: rankings, the back ends that compute them, and what they return kept on disk."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datamodules.retrieval.base import Collection, Hits, Ranking, Retriever
    from datamodules.retrieval.dense import DenseRetriever
    from datamodules.retrieval.elasticsearch import ElasticsearchRetriever
    from datamodules.retrieval.elasticsearch_dense import ElasticsearchDenseRetriever
    from datamodules.retrieval.embedded import EmbeddedRetriever
    from datamodules.retrieval.folder_memory import POINTER, FolderMemory, contents_of_memory, read_pointer
    from datamodules.retrieval.fused import FusedRetriever
    from datamodules.retrieval.index_memory import IndexMemory
    from datamodules.retrieval.memory import Memory, Neighbors, UnknownLabels
    from datamodules.retrieval.neighbors import NeighborStore, build_neighbors
    from datamodules.retrieval.opening import (
        is_existing_index,
        is_memory,
        load_all_retrievers,
        make_retriever,
        open_memory,
        servers_of,
    )

__all__ = [
    "POINTER",
    "Collection",
    "DenseRetriever",
    "ElasticsearchDenseRetriever",
    "ElasticsearchRetriever",
    "EmbeddedRetriever",
    "FolderMemory",
    "FusedRetriever",
    "Hits",
    "IndexMemory",
    "Memory",
    "NeighborStore",
    "Neighbors",
    "Ranking",
    "Retriever",
    "UnknownLabels",
    "build_neighbors",
    "contents_of_memory",
    "is_existing_index",
    "is_memory",
    "load_all_retrievers",
    "make_retriever",
    "open_memory",
    "read_pointer",
    "servers_of",
]

# Imported when asked for: each back end brings packages that the others do without.
_NAMES = {
    "base": ("Collection", "Hits", "Ranking", "Retriever"),
    "dense": ("DenseRetriever",),
    "elasticsearch": ("ElasticsearchRetriever",),
    "elasticsearch_dense": ("ElasticsearchDenseRetriever",),
    "embedded": ("EmbeddedRetriever",),
    "folder_memory": ("POINTER", "FolderMemory", "contents_of_memory", "read_pointer"),
    "fused": ("FusedRetriever",),
    "index_memory": ("IndexMemory",),
    "memory": ("Memory", "Neighbors", "UnknownLabels"),
    "neighbors": ("NeighborStore", "build_neighbors"),
    "opening": (
        "is_existing_index",
        "is_memory",
        "load_all_retrievers",
        "make_retriever",
        "open_memory",
        "servers_of",
    ),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
