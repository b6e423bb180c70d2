"""Finding memories: one ranking, two back ends, and what they return kept on disk."""

from __future__ import annotations

from datamodules.retrieval.base import Hits, Ranking, Retriever
from datamodules.retrieval.dense import DenseRetriever
from datamodules.retrieval.elasticsearch import ElasticsearchRetriever
from datamodules.retrieval.elasticsearch_dense import ElasticsearchDenseRetriever
from datamodules.retrieval.embedded import EmbeddedRetriever
from datamodules.retrieval.fused import FusedRetriever
from datamodules.retrieval.memory import (
    FolderMemory,
    IndexMemory,
    Memory,
    Neighbors,
    make_retriever,
    open_memory,
)
from datamodules.retrieval.neighbors import NeighborStore, build_neighbors

__all__ = [
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
    "build_neighbors",
    "make_retriever",
    "open_memory",
]
