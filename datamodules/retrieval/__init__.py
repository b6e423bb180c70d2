"""Finding memories: rankings, the back ends that compute them, and what they return kept on disk."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datamodules.retrieval.base import Collection, Hits, Ranking, Retriever
    from datamodules.retrieval.dense.retriever import DenseRetriever
    from datamodules.retrieval.elasticsearch.dense_retriever import ElasticsearchDenseRetriever
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever
    from datamodules.retrieval.embedded.retriever import EmbeddedRetriever
    from datamodules.retrieval.fused import FusedRetriever
    from datamodules.retrieval.memories.folder_memory import (
        POINTER,
        FolderMemory,
        contents_of_memory,
        read_pointer,
    )
    from datamodules.retrieval.memories.index_memory import IndexMemory
    from datamodules.retrieval.memories.memory import Memory, Neighbors, UnknownLabels
    from datamodules.retrieval.memories.neighbors import build_neighbors, open_neighbors
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
    "open_neighbors",
    "read_pointer",
    "servers_of",
]

# Imported when asked for: each back end brings packages that the others do without.
_NAMES = {
    "base": ("Collection", "Hits", "Ranking", "Retriever"),
    "dense.retriever": ("DenseRetriever",),
    "elasticsearch.retriever": ("ElasticsearchRetriever",),
    "elasticsearch.dense_retriever": ("ElasticsearchDenseRetriever",),
    "embedded.retriever": ("EmbeddedRetriever",),
    "memories.folder_memory": ("POINTER", "FolderMemory", "contents_of_memory", "read_pointer"),
    "fused": ("FusedRetriever",),
    "memories.index_memory": ("IndexMemory",),
    "memories.memory": ("Memory", "Neighbors", "UnknownLabels"),
    "memories.neighbors": ("build_neighbors", "open_neighbors"),
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
