"""A memory that is an Elasticsearch index of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of
from datamodules.corpora.rows import Rows
from datamodules.retrieval.memories.memory import Addition, Memory, Neighbors, UnknownLabels

if TYPE_CHECKING:
    from datamodules.retrieval.elasticsearch.retriever import Document, ElasticsearchRetriever


class IndexMemory(Memory):
    """A memory that is an Elasticsearch index of the user's; nothing is written to it."""

    retriever: ElasticsearchRetriever

    def __init__(self, retriever: ElasticsearchRetriever) -> None:
        if retriever.existing_index is None:
            raise InputError("data.retriever: name the index that is the memory (--data.retriever.index)")
        self.retriever = retriever
        self.fingerprint = self._fingerprint_now()

    def _fingerprint_now(self) -> str:
        return fingerprint_of({**self.retriever.ranking.describe(), **self.retriever.describe_index()})

    def check_unchanged(self) -> None:
        """Ask for the index's state again: half of one state and half of another is the memory of no model.

        Raises:
            InputError: documents were written, or an index of a pattern or alias has come, gone or closed.
        """
        if self._fingerprint_now() != self.fingerprint:
            raise InputError(
                f"{self.location()}: the index was changed while memories were retrieved from it; run the same command"
                " again when nobody writes to it"
            )

    def add(
        self,
        rows: Rows,
        labels: Sequence[str] | None = None,
        unknown_labels: UnknownLabels = "refuse",
        keep_ids: bool = False,
        progress: bool = True,
    ) -> Addition:
        """Refuse: the index is the user's. Documents that he adds to it are found at once.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{self.location()}: this index is yours, and nothing is written to it; add the documents with your"
            " own tools, they are found at once"
        )

    def labels(self) -> list[str]:
        """The distinct labels, sorted; empty if the memory has none."""
        return self.retriever.distinct_labels()

    def location(self) -> str:
        """What `open_memory` opens; holds no secret."""
        return f"index:{self.retriever.existing_index}"

    def search(
        self,
        texts: Sequence[str],
        k: int,
        leave_out_copies: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        """The k best memories of each text; see `Memory.search`. The index is no table, so `own_ids` say nothing."""
        documents = self.retriever.search_documents(texts, k, leave_out_copies)
        rows = np.full((len(texts), k), -1, np.int32)
        scores = np.zeros((len(texts), k), np.float32)
        position: dict[str, int] = {}
        found: list[Document] = []
        for query, hits in enumerate(documents):
            for rank, hit in enumerate(hits):
                if hit.id not in position:
                    position[hit.id] = len(found)
                    found.append(hit)
                rows[query, rank] = position[hit.id]
                scores[query, rank] = hit.score
        memories = Rows.from_lists(
            texts=[hit.text for hit in found],
            labels=[hit.label for hit in found],
            ids=[hit.id for hit in found],
            source=self.location(),
        )
        return Neighbors(rows, scores, memories)
