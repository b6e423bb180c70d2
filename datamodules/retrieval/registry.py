"""Retrievers by their names, and from the descriptions in memories and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from datamodules.core.classes import imported_subclass, option_defaults
from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import PlainDict
from datamodules.retrieval.base import Retriever

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever

#: Name -> module of the built-in retrievers, imported on first use: each needs packages that the others do not.
RETRIEVERS = {
    "DenseRetriever": "datamodules.retrieval.dense.retriever",
    "ElasticsearchDenseRetriever": "datamodules.retrieval.elasticsearch.dense_retriever",
    "ElasticsearchRetriever": "datamodules.retrieval.elasticsearch.retriever",
    "EmbeddedRetriever": "datamodules.retrieval.embedded.retriever",
    "FusedRetriever": "datamodules.retrieval.fused",
    "OpenSearchRetriever": "datamodules.retrieval.elasticsearch.retriever",
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
        advice = f"use {', '.join(RETRIEVERS)}, or import your own before (zoo --import MODULE)"
        raise InputError(f"no retriever {class_path!r}; {advice}")
    return kind


def checked_description(description: object, folder: Path | None = None) -> PlainDict:
    """Return what `Retriever.describe` described in a file, which names no server, with encoders that are in `folder`.

    Raises an `InputError` for a class that is neither built-in nor imported: nothing is imported by a name in a file.
    """
    if not isinstance(description, dict) or not isinstance(description.get("init_args"), dict):
        raise InputError("the description of the retriever is damaged; name a retriever with --retriever")
    kind = retriever_class(str(description.get("class_path")))
    arguments = {
        str(name): with_members(value, lambda member: checked_description(member, folder))
        for name, value in description["init_args"].items()
    }
    if unknown := sorted(arguments.keys() - option_defaults(kind).keys()):
        raise InputError(f"the retriever {kind.__name__} has no option {excerpt(unknown[0])!r}")
    if local := sorted(kind.local_options & arguments.keys()):
        problem = f"has the option {local[0]}, which files must not set"
        advice = "name a server in ELASTICSEARCH_URL or OPENSEARCH_URL, or with --retriever"
        raise InputError(f"the description of the retriever {kind.__name__} {problem}; {advice}")
    encoder = arguments.get("encoder")
    if folder is not None and isinstance(encoder, str) and (folder / encoder).exists():
        arguments["encoder"] = str(folder / encoder)
    elif folder is not None and isinstance(encoder, str) and os.path.lexists(encoder):
        problem = f"names the encoder {encoder!r} on the Hub, and here is a file of this name"
        advice = "run the command in another folder, or name a retriever with --retriever"
        raise InputError(f"{folder}: {problem}; {advice}")
    return {"class_path": f"{kind.__module__}.{kind.__name__}", "init_args": arguments}


def with_members(value: object, change: Callable[[PlainDict], object]) -> object:
    """Return a retriever's described option with a change of each description of another retriever in it."""
    if isinstance(value, list):
        return [with_members(item, change) for item in value]
    return change(value) if isinstance(value, dict) and "class_path" in value else value


def make_retriever(description: object, folder: Path | None = None) -> Retriever:
    """Make the retriever that `Retriever.describe` described in a file; see `checked_description`."""
    checked = checked_description(description, folder)
    # Once: the members' encoders already have their places in the folder.
    arguments = {name: with_members(value, make_retriever) for name, value in checked["init_args"].items()}
    return retriever_class(checked["class_path"])(**arguments)


def is_existing_index(retriever: Retriever) -> TypeGuard[ElasticsearchRetriever]:
    """Return True for a retriever that reads a user's Elasticsearch index."""
    return retriever.existing_index is not None
