"""A memory that is an existing Elasticsearch index, and memories of both kinds opened by their locations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Hits, Retriever
from datamodules.retrieval.memories.folder_memory import FolderMemory, changed_ranking
from datamodules.retrieval.memories.memory import Memory, Neighbors
from datamodules.retrieval.memories.versions import is_of_model, pointer_of, read_pointer
from datamodules.retrieval.registry import is_existing_index, make_retriever

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever


class IndexMemory(Memory):
    """An existing Elasticsearch index, which is only read."""

    retriever: ElasticsearchRetriever

    def __init__(self, retriever: ElasticsearchRetriever) -> None:
        self.retriever = retriever
        self.fingerprint = self._current_fingerprint()

    def _current_fingerprint(self) -> str:
        return fingerprint_of({**self.retriever.describe_ranking(), **self.retriever.describe_index()})

    @override
    def check_unchanged(self) -> None:
        # Neighbors of two states of an index belong to no memory that a model could be tested with.
        if self._current_fingerprint() != self.fingerprint:
            raise InputError(f"{self.location()}: changed during retrieval; run the command again")

    @override
    def labels(self) -> list[str]:
        return self.retriever.distinct_labels()

    @override
    def location(self) -> str:
        return f"index:{self.retriever.existing_index}"

    @override
    def search(
        self, texts: Sequence[str], k: int, exclude_duplicates: bool = False, own_ids: list[str] | None = None
    ) -> Neighbors:
        results = self.retriever.search_documents(texts, k, exclude_duplicates)
        distinct = {document.id: document for documents in results for document in documents}
        row_of = {document_id: row for row, document_id in enumerate(distinct)}
        hits = Hits.none(len(texts), k)
        for query, documents in enumerate(results):
            hits.rows[query, : len(documents)] = [row_of[document.id] for document in documents]
            hits.scores[query, : len(documents)] = [document.score for document in documents]
        read = distinct.values()
        memories = Rows.from_lists(
            [each.text for each in read], [each.label for each in read], distinct, self.location()
        )
        return Neighbors(hits.rows, hits.scores, memories)


def is_memory(location: str | None) -> bool:
    """Return True for the folder of a memory, and for an index of the user's."""
    return location is not None and (location.startswith("index:") or pointer_of(Path(location)).exists())


def open_memory(
    location: str | None, retriever: Retriever | None = None, version: int | None = None
) -> Memory:
    """Open a memory by its `Memory.location`, with the retriever and at the version given or stored in its folder.

    A retriever that reads an index of the user's opens that index.
    """
    if retriever is not None and is_existing_index(retriever):
        if version is not None:
            place = f"index:{retriever.existing_index}"
            raise InputError(f"{place}: an index of yours has no versions; omit the version")
        return IndexMemory(retriever)
    if location is None:
        raise InputError("there is no memory: name a folder of `zoo index`, or a table (--data.memory)")
    if location.startswith("index:"):
        advice = "name it with --data.retriever, such as ElasticsearchRetriever, and its index"
        raise InputError(f"{location}: {advice}")
    folder = Path(location)
    state = read_pointer(folder)
    if retriever is None:
        # A model folder has the encoders of its retriever.
        retriever = make_retriever(state["retriever"], folder.parent if is_of_model(folder) else None)
    # Not that of the stored retriever: its encoder's files may have changed since.
    if change := changed_ranking(state["ranking"], retriever):
        raise InputError(f"{folder}: {change}; make them equal or build another memory with `zoo index`")
    return FolderMemory(folder, retriever, version)
