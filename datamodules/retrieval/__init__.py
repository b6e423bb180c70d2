"""Retrieval: retrievers, and the memories that they search."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from datamodules.retrieval.base import Retriever as Retriever
from datamodules.retrieval.base import TermRetriever as TermRetriever
from datamodules.retrieval.memories.folder_memory import FolderMemory as FolderMemory
from datamodules.retrieval.memories.index_memory import IndexMemory as IndexMemory
from datamodules.retrieval.memories.index_memory import is_memory as is_memory
from datamodules.retrieval.memories.index_memory import open_memory as open_memory
from datamodules.retrieval.memories.memory import Memory as Memory
from datamodules.retrieval.memories.memory import Neighbors as Neighbors
from datamodules.retrieval.memories.memory import build_neighbors as build_neighbors
from datamodules.retrieval.memories.versions import contents_of_memory as contents_of_memory
from datamodules.retrieval.memories.versions import pointer_of as pointer_of
from datamodules.retrieval.registry import RETRIEVERS
from datamodules.retrieval.registry import checked_description as checked_description
from datamodules.retrieval.registry import is_existing_index as is_existing_index
from datamodules.retrieval.registry import load_all_retrievers as load_all_retrievers
from datamodules.retrieval.registry import make_retriever as make_retriever

if TYPE_CHECKING:
    from datamodules.retrieval.dense.retriever import DenseRetriever as DenseRetriever
    from datamodules.retrieval.elasticsearch.dense_retriever import (
        ElasticsearchDenseRetriever as ElasticsearchDenseRetriever,
    )
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever as ElasticsearchRetriever
    from datamodules.retrieval.elasticsearch.retriever import OpenSearchRetriever as OpenSearchRetriever
    from datamodules.retrieval.embedded.retriever import EmbeddedRetriever as EmbeddedRetriever
    from datamodules.retrieval.fused import FusedRetriever as FusedRetriever


def __getattr__(name: str) -> object:
    if name in RETRIEVERS:
        return getattr(import_module(RETRIEVERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
