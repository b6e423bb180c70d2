"""Finding memories: one ranking, two back ends, and what they return kept on disk."""

from __future__ import annotations

from typing import Any

from datamodules.retrieval.base import Hits, Ranking, Retriever
from datamodules.retrieval.elasticsearch import ElasticsearchRetriever
from datamodules.retrieval.embedded import EmbeddedRetriever
from datamodules.retrieval.memory import FolderMemory, IndexMemory, Memory, Neighbors, open_memory
from datamodules.retrieval.neighbors import NeighborStore, build_neighbors

__all__ = [
    "ElasticsearchRetriever",
    "EmbeddedRetriever",
    "FolderMemory",
    "Hits",
    "IndexMemory",
    "Memory",
    "NeighborStore",
    "Neighbors",
    "Ranking",
    "Retriever",
    "build_neighbors",
    "make_retriever",
    "open_memory",
]

RETRIEVERS: dict[str, type[Retriever]] = {
    "EmbeddedRetriever": EmbeddedRetriever,
    "ElasticsearchRetriever": ElasticsearchRetriever,
}


def make_retriever(description: dict[str, Any]) -> Retriever:
    """The retriever that `Retriever.describe` described."""
    return RETRIEVERS[description["class_path"].rpartition(".")[2]](**description["init_args"])
