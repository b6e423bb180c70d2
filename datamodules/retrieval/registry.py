"""Retrievers by their names, and from the descriptions in memories and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, TypeGuard

from datamodules.core.classes import imported_subclass
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.retrieval.base import Retriever

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.connection import ServerConnection
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever

#: Name -> module of the built-in retrievers, imported on first use: each needs packages that the others do not.
RETRIEVERS = {
    "DenseRetriever": "datamodules.retrieval.dense.retriever",
    "ElasticsearchDenseRetriever": "datamodules.retrieval.elasticsearch.dense_retriever",
    "ElasticsearchRetriever": "datamodules.retrieval.elasticsearch.retriever",
    "EmbeddedRetriever": "datamodules.retrieval.embedded.retriever",
    "FusedRetriever": "datamodules.retrieval.fused",
}


def load_all_retrievers() -> None:
    """Import the built-in retrievers, so that a command line finds them by their names."""
    for module in RETRIEVERS.values():
        import_module(module)


def retriever_class(class_path: str) -> type[Retriever]:
    """Return a built-in or an imported retriever by its name, with or without its module."""
    module, _, name = class_path.rpartition(".")
    if name in RETRIEVERS and module in ("", RETRIEVERS[name]):
        import_module(RETRIEVERS[name])
        class_path = f"{RETRIEVERS[name]}.{name}"
    kind = imported_subclass(Retriever, class_path)
    if kind is None:
        raise InputError(
            f"no retriever {class_path!r}; use {', '.join(RETRIEVERS)}, or import your own before (zoo --import MODULE)"
        )
    return kind


def make_retriever(description: PlainDict) -> Retriever:
    """Make the retriever that `Retriever.describe` described in a file: no user has named its servers."""
    arguments = dict(description["init_args"])
    if "retrievers" in arguments:
        arguments["retrievers"] = [make_retriever(member) for member in arguments["retrievers"]]
    retriever = retriever_class(description["class_path"])(**arguments)
    for server in servers_of(retriever):
        server.trust([])
    return retriever


def servers_of(retriever: Retriever) -> Iterator[ServerConnection]:
    """Yield the connections of a retriever and of its members."""
    server: ServerConnection | None = getattr(retriever, "server", None)
    if server is not None and hasattr(server, "trust"):
        yield server
    for member in retriever.retrievers:
        yield from servers_of(member)


def is_existing_index(retriever: Retriever) -> TypeGuard[ElasticsearchRetriever]:
    """Return True for a retriever that reads a user's Elasticsearch index."""
    return retriever.existing_index is not None
