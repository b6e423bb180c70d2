"""The retriever without a server: an index of files in a folder, searched by compiled code."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.retrieval.base import (
    MAX_QUERY_TERMS,
    Hits,
    Ranking,
    Similarity,
    check_search,
)
from datamodules.retrieval.base import Analyzer as AnalyzerName
from datamodules.retrieval.embedded import inverted_index, maxscore
from datamodules.retrieval.embedded.analysis import Analyzer, TermIds
from datamodules.retrieval.embedded.folder_retriever import FolderRetriever
from datamodules.retrieval.embedded.inverted_index import InvertedIndex

# Queries that are made numbers of and searched in one go.
_QUERIES = 4096
# Different query words that a retriever remembers between searches.
_REMEMBERED_TERMS = 1 << 18


class EmbeddedRetriever(FolderRetriever[InvertedIndex]):
    """Ranks like Elasticsearch, without a server: the index is a folder on the local disk.

    When texts are added, only these are analysed. Every score depends on statistics of the whole collection, so
    the postings are made anew, by compiled code from the term ids that the index keeps.

    Args:
        similarity: `BM25` or `LMDirichlet`.
        analyzer: `standard`, `english` or `cjk`.
        k1: BM25's saturation of the term frequency.
        b: BM25's weight of the document length.
        mu: LMDirichlet's pseudo-count, in words.
        threads: how many threads a search uses.
    """

    ranking: Ranking

    def __init__(
        self,
        similarity: Similarity = "BM25",
        analyzer: AnalyzerName = "standard",
        k1: float = 1.2,
        b: float = 0.75,
        mu: float = 2000.0,
        threads: int = 1,
    ) -> None:
        if threads < 1:
            raise InputError(f"threads={threads}: use 1 or more")
        self.ranking = Ranking(similarity, analyzer, k1, b, mu)
        self.threads = threads
        super().__init__()

    def _forget(self) -> None:
        super()._forget()
        self._warned = False
        self._forget_terms()

    def _forget_terms(self) -> None:
        self._term_ids: TermIds | None = None
        # The index's id of each term of `_term_ids`, -1 = not in the collection.
        self._known = np.empty(0, np.int32)

    def _init_args(self) -> dict[str, Any]:
        return {**asdict(self.ranking), "threads": self.threads}

    def _build(self, texts: Sequence[str], folder: Path, progress: bool, after: InvertedIndex | None) -> None:
        inverted_index.build(texts, self.ranking, folder, progress, after)

    def _map(self, folder: Path) -> InvertedIndex:
        return InvertedIndex.map(folder)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_term_ids": None, "_known": np.empty(0, np.int32)}

    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """The best k rows for each text; see `Retriever.search`."""
        check_search(texts, k, exclude)
        index = self._opened()
        hits = Hits.none(len(texts), k)
        if k == 0:
            return hits
        # Lucene's LMDirichlet lets a text with a term of the query have the score 0 and be a hit.
        zero_hits = self.ranking.similarity == "LMDirichlet"
        jobs = []
        with ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext() as pool:
            for first in range(0, len(texts), _QUERIES):
                last = min(first + _QUERIES, len(texts))
                excluded = None if exclude is None else exclude[first:last]
                queries = self._queries(index, texts[first:last], excluded)
                share = -(-(last - first) // self.threads)
                for begin in range(first, last, share):
                    end = min(begin + share, last)
                    part = Hits(hits.rows[begin:end], hits.scores[begin:end])
                    job = partial(maxscore.search, index, queries, begin - first, part, zero_hits)
                    if pool is None:
                        job()
                    else:
                        jobs.append(pool.submit(job))
            for submitted in jobs:
                submitted.result()
        return hits

    def _queries(
        self, index: InvertedIndex, texts: Sequence[str], exclude: Sequence[Sequence[int]] | None
    ) -> maxscore.Queries:
        """The queries as numbers of the index. Terms are looked up once and remembered."""
        if self._term_ids is None or len(self._term_ids.ids) > _REMEMBERED_TERMS:
            self._forget_terms()
            self._term_ids = TermIds(Analyzer(self.ranking.analyzer))
        ids, starts = self._term_ids.encode(texts)
        new = self._term_ids.ids.new
        if new:
            self._known = np.concatenate([self._known, index.find_terms(new)])
            new.clear()
        query_starts, terms, counts, cut = maxscore.count_terms(ids, starts, self._known, MAX_QUERY_TERMS)
        if cut and not self._warned:
            self._warned = True
            warnings.warn(
                f"a query has more than {MAX_QUERY_TERMS} different terms: only the first "
                f"{MAX_QUERY_TERMS} are used",
                stacklevel=3,
            )
        return maxscore.Queries(query_starts, terms, counts, *_ragged(exclude, len(texts)))


def _ragged(lists: Sequence[Sequence[int]] | None, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """n lists as (int64 [n + 1] starts, values); None = empty ones."""
    starts = np.zeros(n + 1, np.int64)
    if lists is None:
        return starts, np.empty(0, np.int64)
    np.cumsum([len(values) for values in lists], out=starts[1:])
    return starts, np.concatenate([np.asarray(values, np.int64) for values in lists])
