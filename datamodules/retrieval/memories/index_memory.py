"""A memory that is an existing Elasticsearch index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Hits
from datamodules.retrieval.memories.memory import Memory, Neighbors

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.retriever import ElasticsearchRetriever


class IndexMemory(Memory):
    """An existing Elasticsearch index, which is only read."""

    retriever: ElasticsearchRetriever

    def __init__(self, retriever: ElasticsearchRetriever) -> None:
        if retriever.existing_index is None:
            raise InputError("data.retriever: name the index that is the memory (--data.retriever.index)")
        self.retriever = retriever
        self.fingerprint = self._current_fingerprint()

    def _current_fingerprint(self) -> str:
        return fingerprint_of({**self.retriever.ranking.describe(), **self.retriever.describe_index()})

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
        self,
        texts: Sequence[str],
        k: int,
        exclude_duplicates: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        results = self.retriever.search_documents(texts, k, exclude_duplicates)
        distinct = {document.id: document for documents in results for document in documents}
        row_of = {document_id: row for row, document_id in enumerate(distinct)}
        hits = Hits.none(len(texts), k)
        for query, documents in enumerate(results):
            hits.rows[query, : len(documents)] = [row_of[document.id] for document in documents]
            hits.scores[query, : len(documents)] = [document.score for document in documents]
        memories = Rows.from_lists(
            texts=[document.text for document in distinct.values()],
            labels=[document.label for document in distinct.values()],
            ids=list(distinct),
            source=self.location(),
        )
        return Neighbors(hits.rows, hits.scores, memories)
