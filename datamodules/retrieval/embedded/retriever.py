"""The retriever without a server: an index of files in a folder, searched by compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.sharing import SharedLock
from datamodules.retrieval import base
from datamodules.retrieval.embedded import inverted_index, lucene, maxscore
from datamodules.retrieval.embedded.analysis import TermIds
from datamodules.retrieval.embedded.inverted_index import InvertedIndex, term_hashes

_QUERIES = 4096
_MOST_TERMS = 1 << 18


class EmbeddedRetriever(base.TermRetriever, base.FolderRetriever[InvertedIndex]):
    """Ranks like Elasticsearch, without a server: the index is a folder on the local disk."""

    def _forget(self) -> None:
        super()._forget()
        # An index, the terms of earlier queries, and the index's ids of them, int32; -1 = not in the collection.
        self._terms: tuple[InvertedIndex, TermIds, NDArray[np.int32]] | None = None
        self._in_use = SharedLock()

    def _build(
        self, texts: Sequence[str], folder: Path, old: tuple[InvertedIndex, NDArray[np.int64]] | None
    ) -> None:
        inverted_index.build(texts, self.ranking, folder, old)

    def _map(self, folder: Path) -> InvertedIndex:
        return InvertedIndex.map(folder)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_terms": None}

    def search(self, texts: Sequence[str], k: int, exclude: base.ExcludedRows | None = None) -> base.Hits:
        """See `Retriever.search`."""
        base.check_search(texts, k, exclude)
        index = self._opened()
        keys = np.zeros((len(texts), k), np.int64)
        if k == 0:
            return base.Hits.of_keys(keys)
        for first in range(0, len(texts), _QUERIES):
            last = min(first + _QUERIES, len(texts))
            excluded = None if exclude is None else exclude[first:last]
            queries = self._queries(index, texts[first:last], excluded)
            maxscore.search(index, queries, keys[first:last], lucene.factor(self.ranking))
        return base.Hits.of_keys(keys)

    def _queries(
        self, index: InvertedIndex, texts: Sequence[str], exclude: base.ExcludedRows | None
    ) -> maxscore.Queries:
        """Return the queries with the term ids of the index. Each term is looked up once."""
        with self._in_use:
            if self._terms is None or self._terms[0] is not index or len(self._terms[2]) > _MOST_TERMS:
                self._terms = index, TermIds(self.ranking.analyzer), np.empty(0, np.int32)
            _, terms, known = self._terms
            ids, starts = terms.encode(texts)
            if new := terms.ids.new:
                known = np.concatenate([known, index.lookup.first_rows(term_hashes(new))])
                self._terms = index, terms, known
                new.clear()
        starts, own, counts, is_cut = maxscore.count_terms(ids, starts, known, base.MAX_QUERY_TERMS)
        if is_cut:
            self.warn_of_long_query()
        return maxscore.Queries(starts, own, counts, *base.joined_rows(exclude, len(texts)))
