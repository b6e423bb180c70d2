"""A search index in a folder: memory-mapped arrays, ranked by compiled kernels.

What a term adds to a document's score depends on nothing else, so the index stores that number for every
(term, document) pair, term by term, documents in order. A search adds the numbers of the query's terms and
keeps the best k, and leaves out work that can't change the result (`_search`).

The ids of the texts' terms are kept as well: from them the index of a grown collection is built without
analysing the old texts again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules import storage
from datamodules.errors import InputError
from datamodules.retrieval.analysis import Analyzer, TermIds
from datamodules.retrieval.base import Analyzer as AnalyzerName
from datamodules.retrieval.base import Hits, Ranking, Retriever, Similarity
from datamodules.retrieval.lucene import (
    Statistics,
    bm25,
    length_bytes,
    length_weights,
    lm_dirichlet,
    term_weights,
)

#: A query is cut to this many different terms, as in Elasticsearch's retriever.
MAX_QUERY_TERMS = 512

# Texts analysed at once, and postings built at once: what the build holds in memory.
_TEXTS = 4096
_POSTINGS = 1 << 21
# Different query words that a retriever remembers between searches.
_REMEMBERED_TERMS = 1 << 18


class _Index(NamedTuple):
    """The arrays of an index; each is a file of its name. N texts, T terms, P postings, F frequent terms."""

    #: int32: the term ids of all texts, one text after the other.
    text_terms: NDArray[np.int32]
    #: int64 [N + 1]: where each text begins in `text_terms`.
    text_starts: NDArray[np.int64]
    #: uint8: the terms in UTF-8, one after the other in the order of their ids.
    term_bytes: NDArray[np.uint8]
    #: int64 [T + 1]: where each term begins in `term_bytes`.
    term_starts: NDArray[np.int64]
    #: int32, a power of two: a hash table of term ids, -1 = free.
    term_table: NDArray[np.int32]
    #: int64 [T + 1]: where each term's postings begin.
    posting_starts: NDArray[np.int64]
    #: int32 [P]: the texts with the term, ascending.
    posting_rows: NDArray[np.int32]
    #: float32 [P]: what the term adds to the score of the text.
    posting_scores: NDArray[np.float32]
    #: float32 [T]: the largest of the term's scores.
    term_best: NDArray[np.float32]
    #: int32 [T]: the row of a frequent term in the two tables below, -1 for any other.
    term_bitmap: NDArray[np.int32]
    #: uint64 [F * W], W = ceil(N / 64): bit r % 64 of word r // 64 is set where text r has the term.
    bitmap_words: NDArray[np.uint64]
    #: int32 [F * W]: how many of the term's postings lie before the word.
    bitmap_ranks: NDArray[np.int32]


_DTYPES: dict[str, Any] = {
    "text_terms": np.int32,
    "text_starts": np.int64,
    "term_bytes": np.uint8,
    "term_starts": np.int64,
    "term_table": np.int32,
    "posting_starts": np.int64,
    "posting_rows": np.int32,
    "posting_scores": np.float32,
    "term_best": np.float32,
    "term_bitmap": np.int32,
    "bitmap_words": np.uint64,
    "bitmap_ranks": np.int32,
}


class EmbeddedRetriever(Retriever):
    """Ranks like Elasticsearch, without a server: the index is a folder on the local disk.

    Opening takes milliseconds, processes share the pages, and an object that is pickled carries the folder's
    name only.

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
        self._place: tuple[Path, str] | None = None
        self._forget()

    def _forget(self) -> None:
        self._index: _Index | None = None
        self._query_ids = TermIds(Analyzer(self.ranking.analyzer))
        # The index's id of each term of `_query_ids`, -1 = not in the collection.
        self._known = np.empty(0, np.int32)
        self._warned = False

    def describe(self) -> dict[str, Any]:
        """`class_path` and `init_args` that make this specification again."""
        arguments = {**asdict(self.ranking), "threads": self.threads}
        return {"class_path": f"{type(self).__module__}.{type(self).__name__}", "init_args": arguments}

    def index(
        self,
        texts: Sequence[str],
        folder: Path,
        fingerprint: str,
        progress: bool = True,
        *,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
    ) -> None:
        """Build the index of `texts` in `folder` and open it; see `Retriever.index`. Keeps no ids or labels.

        Raises:
            InputError: the disk is full or the folder can't be written.
        """
        self.close()
        with storage.lock(folder), storage.new_folder(folder, fingerprint) as partial:
            _write_texts(texts, Analyzer(self.ranking.analyzer), partial, progress)
            _write_postings(self.ranking, partial)
        self.open(folder, fingerprint)

    def add(
        self,
        texts: Sequence[str],
        start_row: int,
        folder: Path,
        fingerprint: str,
        progress: bool = True,
        *,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
    ) -> None:
        """Build the index of a collection that has grown in a folder of its own; see `Retriever.add`.

        Only the new texts are analysed. Every score depends on statistics of the whole collection, so the
        postings are made anew, by compiled code from the term ids that the open index keeps.

        Raises:
            InputError: no index is open or it hasn't `start_row` texts; the disk is full or the folder can't
                be written.
        """
        old = self._opened()
        if len(old.text_starts) - 1 != start_row:
            raise InputError(
                f"{folder}: the open index has {len(old.text_starts) - 1} texts, but texts from {start_row}"
                " are to be added"
            )
        with storage.lock(folder), storage.new_folder(folder, fingerprint) as partial:
            _write_texts(texts[start_row:], Analyzer(self.ranking.analyzer), partial, progress, after=old)
            _write_postings(self.ranking, partial)

    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the index in `folder`; see `Retriever.open`.

        Raises:
            InputError: no such index, one of another fingerprint, a half-built or damaged one.
        """
        self.close()
        storage.check_folder(folder, fingerprint)
        self._index = _Index(**{name: _map(folder, name) for name in _Index._fields})
        self._place = folder, fingerprint

    def close(self) -> None:
        """Let go of the files; `open` may follow."""
        self._place = None
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"ranking": self.ranking, "threads": self.threads, "_place": self._place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """The best k rows for each text; see `Retriever.search`.

        Raises:
            InputError: no index is open, or one that was open has gone.
        """
        if k < 0:
            raise InputError(f"k={k}: must be 0 or more")
        index = self._opened()
        if exclude is not None and len(exclude) != len(texts):
            raise InputError(f"exclude has {len(exclude)} lists for {len(texts)} texts: give one a text")
        hits = Hits(np.full((len(texts), k), -1, np.int32), np.zeros((len(texts), k), np.float32))
        if k == 0:
            return hits
        jobs = []
        with ThreadPoolExecutor(self.threads) as pool:
            for first in range(0, len(texts), _TEXTS):
                last = min(first + _TEXTS, len(texts))
                queries = self._queries(texts[first:last])
                excluded = _ragged([] if exclude is None else exclude[first:last], last - first)
                share = -(-(last - first) // self.threads)
                for begin in range(0, last - first, share):
                    part = slice(first + begin, min(first + begin + share, last))
                    arguments = (begin, *queries, *excluded, hits.rows[part], hits.scores[part])
                    if self.threads == 1:
                        self._search(index, arguments)
                    else:
                        jobs.append(pool.submit(self._search, index, arguments))
            for job in jobs:
                job.result()
        return hits

    def _opened(self) -> _Index:
        if self._index is None:
            if self._place is None:
                raise InputError("the retriever has no index: call index() or open() first")
            self.open(*self._place)  # after unpickling
        assert self._index is not None
        return self._index

    def _search(self, index: _Index, arguments: tuple[Any, ...]) -> None:
        _search_queries(
            *arguments,
            len(index.text_starts) - 1,
            index.posting_starts,
            index.posting_rows,
            index.posting_scores,
            index.term_best,
            index.term_bitmap,
            index.bitmap_words,
            index.bitmap_ranks,
            self.ranking.similarity == "LMDirichlet",
        )

    def _queries(
        self, texts: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """The queries' different terms that the collection has, and how often each occurs in the query."""
        index = self._index
        assert index is not None
        if len(self._query_ids.ids) > _REMEMBERED_TERMS:
            self._query_ids = TermIds(self._query_ids.analyzer)
            self._known = np.empty(0, np.int32)
        ids, starts = self._query_ids.encode(texts)
        new = self._query_ids.ids.new
        if new:
            found = _find_terms(*_utf8(new), index.term_table, index.term_bytes, index.term_starts)
            self._known = np.concatenate([self._known, found])
            new.clear()
        query_starts, terms, counts, cut = _count_terms_of_queries(ids, starts, self._known, MAX_QUERY_TERMS)
        if cut and not self._warned:
            self._warned = True
            warnings.warn(
                f"a query has more than {MAX_QUERY_TERMS} different terms: only the first "
                f"{MAX_QUERY_TERMS} are used",
                stacklevel=3,
            )
        return query_starts, terms, counts


def _ragged(lists: Sequence[Sequence[int]], n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """n lists as (int64 [n + 1] starts, values)."""
    starts = np.zeros(n + 1, np.int64)
    if not lists:
        return starts, np.empty(0, np.int64)
    np.cumsum([len(values) for values in lists], out=starts[1:])
    return starts, np.concatenate([np.asarray(values, np.int64) for values in lists])


def _utf8(terms: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Terms as (bytes one after the other, int64 [terms + 1] starts)."""
    encoded = [term.encode() for term in terms]
    starts = np.zeros(len(terms) + 1, np.int64)
    np.cumsum([len(term) for term in encoded], out=starts[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), starts


def _map(folder: Path, name: str) -> NDArray[Any]:
    path = folder / name
    if path.stat().st_size == 0:  # which can't be mapped
        return np.empty(0, _DTYPES[name])
    # A plain array on top of the map: numpy's own class makes slices and calls slower.
    return np.asarray(np.memmap(path, _DTYPES[name], "r"))


# ---------------------------------------------------------------------------------------------------------
# Building


def _write_texts(
    texts: Sequence[str], analyzer: Analyzer, folder: Path, progress: bool, after: _Index | None = None
) -> None:
    """Analyse the texts: write their term ids and the dictionary of terms, `after` those of another index."""
    term_ids = TermIds(analyzer)
    old_starts = np.zeros(1, np.int64) if after is None else after.text_starts
    old_texts, written = len(old_starts) - 1, int(old_starts[-1])
    if old_texts + len(texts) >= 2**31:
        raise InputError(f"{folder}: {old_texts + len(texts)} texts, but an index holds at most {2**31 - 1}")
    starts = np.concatenate([old_starts, np.zeros(len(texts), np.int64)])
    with (
        (folder / "text_terms").open("wb") as file,
        tqdm(total=len(texts), desc="index", unit="text", disable=None if progress else True) as bar,
    ):
        if after is not None:
            after.text_terms.tofile(file)
            for term in _terms(after):
                term_ids.ids[term]  # a new term gets the next number: its own
        for first in range(0, len(texts), _TEXTS):
            block = texts[first : first + _TEXTS]
            ids, bounds = term_ids.encode(block)
            ids.tofile(file)
            begin = old_texts + first + 1
            starts[begin : begin + len(block)] = written + bounds[1:]
            written += len(ids)
            bar.update(len(block))
    starts.tofile(folder / "text_starts")
    term_ids.ids.new.clear()
    term_bytes, term_starts = _utf8(list(term_ids.ids))
    term_bytes.tofile(folder / "term_bytes")
    term_starts.tofile(folder / "term_starts")
    _hash_terms(term_bytes, term_starts).tofile(folder / "term_table")


def _terms(index: _Index) -> Iterator[str]:
    """The terms of an index in the order of their ids."""
    together, starts = index.term_bytes.tobytes(), index.term_starts.tolist()
    return (together[start:end].decode() for start, end in pairwise(starts))


def _write_postings(ranking: Ranking, folder: Path) -> None:
    """Write the postings of the texts whose term ids are in `folder`."""
    text_terms, text_starts = _map(folder, "text_terms"), _map(folder, "text_starts")
    terms = len(_map(folder, "term_starts")) - 1
    rows, occurrences = _count_terms(text_terms, text_starts, terms)
    lengths = np.diff(text_starts)
    statistics = Statistics(rows=int(np.count_nonzero(lengths)), tokens=len(text_terms))
    by_term = term_weights(ranking, statistics, rows, occurrences)
    by_text = length_weights(ranking, statistics)
    norms = length_bytes(lengths)
    starts = np.zeros(terms + 1, np.int64)
    np.cumsum(rows, out=starts[1:])
    starts.tofile(folder / "posting_starts")

    # A frequent term has a bitmap as well: it tells at once whether and where a text is in its postings.
    frequent = np.flatnonzero(rows * 32 >= max(len(lengths), 1024))
    bitmap = np.full(terms, -1, np.int32)
    bitmap[frequent] = np.arange(len(frequent))
    bitmap.tofile(folder / "term_bitmap")
    best = np.zeros(terms, np.float32)
    with (
        (folder / "posting_rows").open("wb") as rows_file,
        (folder / "posting_scores").open("wb") as scores_file,
        (folder / "bitmap_words").open("wb") as words_file,
        (folder / "bitmap_ranks").open("wb") as ranks_file,
    ):
        for low, high in _term_blocks(starts):
            posting_rows, posting_scores = _postings(
                text_terms, text_starts, low, high, starts, norms, by_term, by_text, best,
                ranking.similarity == "BM25",
            )  # fmt: skip
            posting_rows.tofile(rows_file)
            posting_scores.tofile(scores_file)
            for term in frequent[(frequent >= low) & (frequent < high)]:
                of_term = posting_rows[starts[term] - starts[low] : starts[term + 1] - starts[low]]
                words, ranks = _bitmap(of_term, -(-len(lengths) // 64))
                words.tofile(words_file)
                ranks.tofile(ranks_file)
    best.tofile(folder / "term_best")


def _term_blocks(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut the terms into blocks of about _POSTINGS postings."""
    low = 0
    while low < len(starts) - 1:
        high = int(np.searchsorted(starts, starts[low] + _POSTINGS, side="right")) - 1
        high = max(high, low + 1)
        yield low, high
        low = high


@numba.njit(nogil=True, cache=True)
def _count_terms(text_terms, text_starts, terms):  # type: ignore[no-untyped-def]
    """For each term: texts with it, and how often it occurs in all."""
    rows = np.zeros(terms, np.int64)
    occurrences = np.zeros(terms, np.int64)
    last = np.full(terms, -1, np.int32)
    for row in range(len(text_starts) - 1):
        for place in range(text_starts[row], text_starts[row + 1]):
            term = text_terms[place]
            occurrences[term] += 1
            if last[term] != row:
                last[term] = row
                rows[term] += 1
    return rows, occurrences


@numba.njit(nogil=True, cache=True)
def _postings(  # type: ignore[no-untyped-def]
    text_terms, text_starts, low, high, starts, norms, by_term, by_text, best, is_bm25
):
    """Rows and scores of the terms low..high; their largest scores go to `best`."""
    base = starts[low]
    size = starts[high] - base
    rows = np.empty(size, np.int32)
    frequencies = np.zeros(size, np.int32)
    ends = starts[low:high] - base
    for row in range(len(text_starts) - 1):
        for place in range(text_starts[row], text_starts[row + 1]):
            term = text_terms[place]
            if low <= term < high:
                end = ends[term - low]
                # Texts come in order, so a term that the text had before is the last one written.
                if end > starts[term] - base and rows[end - 1] == row:
                    frequencies[end - 1] += 1
                else:
                    rows[end] = row
                    frequencies[end] = 1
                    ends[term - low] = end + 1
    scores = np.empty(size, np.float32)
    for term in range(low, high):
        weight = by_term[term]
        highest = np.float32(0)
        for place in range(starts[term] - base, starts[term + 1] - base):
            length = by_text[norms[rows[place]]]
            if is_bm25:
                score = bm25(weight, length, frequencies[place])
            else:
                score = lm_dirichlet(weight, length, frequencies[place])
            scores[place] = score
            highest = max(highest, score)
        best[term] = highest
    return rows, scores


@numba.njit(nogil=True, cache=True)
def _bitmap(rows, size):  # type: ignore[no-untyped-def]
    """The set of rows as bits, and how many rows lie before each word of 64."""
    words = np.zeros(size, np.uint64)
    ranks = np.zeros(size, np.int32)
    for row in rows:
        words[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
        if (row >> 6) + 1 < size:
            ranks[(row >> 6) + 1] += 1
    for word in range(1, size):
        ranks[word] += ranks[word - 1]
    return words, ranks


# ---------------------------------------------------------------------------------------------------------
# The dictionary: a hash table with linear probing, searched where it lies


@numba.njit(nogil=True, cache=True)
def _hash(values, start, end):  # type: ignore[no-untyped-def]
    """FNV-1a, 64 bits."""
    code = np.uint64(14695981039346656037)
    for place in range(start, end):
        code = (code ^ np.uint64(values[place])) * np.uint64(1099511628211)
    return code ^ (code >> np.uint64(32))


@numba.njit(nogil=True, cache=True)
def _hash_terms(term_bytes, term_starts):  # type: ignore[no-untyped-def]
    terms = len(term_starts) - 1
    size = 2
    while size < 2 * terms:
        size *= 2
    table = np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    for term in range(terms):
        slot = _hash(term_bytes, term_starts[term], term_starts[term + 1]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = term
    return table


@numba.njit(nogil=True, cache=True)
def _find_terms(wanted, wanted_starts, table, term_bytes, term_starts):  # type: ignore[no-untyped-def]
    """The ids of the wanted terms, -1 where the dictionary has no such term."""
    found = np.full(len(wanted_starts) - 1, -1, np.int32)
    mask = np.uint64(len(table) - 1)
    for i in range(len(found)):
        start, length = wanted_starts[i], wanted_starts[i + 1] - wanted_starts[i]
        slot = _hash(wanted, start, start + length) & mask
        while table[slot] >= 0:
            term = table[slot]
            begin = term_starts[term]
            if term_starts[term + 1] - begin == length:
                same = 0
                while same < length and term_bytes[begin + same] == wanted[start + same]:
                    same += 1
                if same == length:
                    found[i] = term
                    break
            slot = (slot + np.uint64(1)) & mask
    return found


@numba.njit(nogil=True, cache=True)
def _count_terms_of_queries(ids, starts, known, most):  # type: ignore[no-untyped-def]
    """Each query's different terms in the index, their counts, and whether a query had to be cut."""
    query_starts = np.zeros(len(starts), np.int64)
    terms = np.empty(len(ids), np.int32)
    counts = np.zeros(len(ids), np.float32)
    place_of = np.full(len(known), -1, np.int64)
    size = 0
    cut = False
    for query in range(len(starts) - 1):
        first = size
        different = 0
        for place in range(starts[query], starts[query + 1]):
            local = ids[place]
            if place_of[local] == -1:
                if different == most:
                    cut = True
                    continue
                different += 1
                if known[local] < 0:
                    place_of[local] = -2
                    continue
                place_of[local] = size
                terms[size] = known[local]
                size += 1
            if place_of[local] >= first:
                counts[place_of[local]] += 1
        for place in range(starts[query], starts[query + 1]):
            place_of[ids[place]] = -1
        query_starts[query + 1] = size
    return query_starts, terms[:size], counts[:size], cut


# ---------------------------------------------------------------------------------------------------------
# Searching

# Texts are scored in windows, small at first (to find good hits early), then as many as fit the cache.
_FIRST_WINDOW = 2048
_LARGEST_WINDOW = 1 << 16
# Rounding of a sum of up to 512 float32 numbers: a bound is trusted to this part only.
_MARGIN = np.float32(0.9999)
# Looking a term up costs far more than adding a posting up. So terms stay essential until the rest could add
# no more than this part of what a hit needs: then few texts are worth a look.
_SHARE = np.float32(0.4)


@numba.njit(nogil=True, cache=True)
def _search_queries(  # type: ignore[no-untyped-def]
    first, query_starts, query_terms, query_counts, excluded_starts, excluded, out_rows, out_scores,
    texts, starts, rows, scores, best, term_bitmap, words, ranks, zero_hits,
):  # fmt: skip
    """Answer queries first, first + 1, ... into the rows of `out_rows` and `out_scores`.

    The terms of a query are sorted by the most that they can add. Once k hits are known, a text that has
    only the last few terms can't become a hit if all of these together add less than the k-th best score
    (MaxScore: Turtle and Flood 1995). So the postings of the first, `essential` terms are added up in full;
    the others, which are the frequent words with long postings, are looked up only for texts that can still
    become hits. The terms are always added in the same order, so the sums do not depend on what was skipped.
    """
    window = np.zeros(_LARGEST_WINDOW, np.float32)
    touched = np.empty(_LARGEST_WINDOW, np.int32)
    k = out_rows.shape[1]
    for i in range(len(out_rows)):
        query = first + i
        terms = query_terms[query_starts[query] : query_starts[query + 1]]
        counts = query_counts[query_starts[query] : query_starts[query + 1]]
        forbidden = excluded[excluded_starts[query] : excluded_starts[query + 1]]
        order = np.argsort(-(best[terms] * counts))
        size = _search(
            terms[order], counts[order], forbidden, out_rows[i], out_scores[i], window, touched,
            texts, starts, rows, scores, best, term_bitmap, words, ranks,
        )  # fmt: skip
        _sort_heap(out_rows[i], out_scores[i], size)
        if zero_hits and size < k:
            _add_zero_hits(terms, forbidden, out_rows[i], size, texts, starts, rows)


@numba.njit(nogil=True, cache=True)
def _search(  # type: ignore[no-untyped-def]
    terms, counts, forbidden, heap_rows, heap_scores, window, touched,
    texts, starts, rows, scores, best, term_bitmap, words, ranks,
):  # fmt: skip
    """Fill the heap with the best texts of positive score; returns how many there are."""
    n, k = len(terms), len(heap_rows)
    size = 0
    threshold = np.float32(0)  # the k-th best score, less the margin: what a text must be able to reach
    rest = np.zeros(n + 1, np.float32)  # the most that terms i, i + 1, ... add together
    for i in range(n - 1, -1, -1):
        rest[i] = rest[i + 1] + best[terms[i]] * counts[i]
    position = starts[terms]
    end = position.copy()
    essential = n
    low, width = 0, _FIRST_WINDOW
    while low < texts:
        while essential > 0 and rest[essential - 1] < _SHARE * threshold:
            essential -= 1
        if essential == 0:
            break
        high = min(low + width, texts)
        width = min(2 * width, _LARGEST_WINDOW)
        total = 0
        for i in range(essential):
            position[i] = _skip(rows, position[i], starts[terms[i] + 1], low)
            end[i] = _skip(rows, position[i], starts[terms[i] + 1], high)
            total += end[i] - position[i]
        for i in range(essential, n):
            end[i] = -1  # not located yet

        few = total * 16 < high - low
        found = 0
        for i in range(essential):
            count = counts[i]
            if few:
                for place in range(position[i], end[i]):
                    here = rows[place] - low
                    if window[here] == 0:
                        touched[found] = here
                        found += 1
                    window[here] += scores[place] * count
            else:
                for place in range(position[i], end[i]):
                    window[rows[place] - low] += scores[place] * count
        if not few:
            found = _above(window, high - low, threshold - rest[essential], touched)

        for candidate in range(found):
            here = touched[candidate]
            score = window[here]
            if few:
                window[here] = 0
            if score <= 0:
                continue
            row = low + here
            i = essential
            while i < n and score + rest[i] >= threshold:
                term = terms[i]
                bitmap = term_bitmap[term]
                if bitmap >= 0:
                    word = bitmap * ((texts + 63) >> 6) + (row >> 6)
                    bit = np.uint64(row & 63)
                    if (words[word] >> bit) & np.uint64(1):
                        before = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
                        place = starts[term] + ranks[word] + _ones(before)
                        score += scores[place] * counts[i]
                else:
                    if end[i] < 0:
                        position[i] = _skip(rows, position[i], starts[term + 1], low)
                        end[i] = _skip(rows, position[i], starts[term + 1], high)
                    place = _lower_bound(rows, position[i], end[i], row)
                    if place < end[i] and rows[place] == row:
                        score += scores[place] * counts[i]
                i += 1
            if i < n or (size == k and not _better(score, row, heap_scores[0], heap_rows[0])):
                continue
            if not _contains(forbidden, row):
                size = _push(heap_rows, heap_scores, size, score, row)
                if size == k:
                    threshold = heap_scores[0] * _MARGIN
        if not few:
            window[: high - low] = 0
        low = high
    return size


@numba.njit(nogil=True, cache=True)
def _skip(rows, place, end, row):  # type: ignore[no-untyped-def]
    """The first place from `place` on with a row >= `row`, found in growing steps."""
    step = 1
    while place + step < end and rows[place + step] < row:
        place += step
        step *= 2
    return _lower_bound(rows, place, min(place + step, end), row)


@numba.njit(nogil=True, cache=True)
def _lower_bound(rows, low, high, row):  # type: ignore[no-untyped-def]
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(nogil=True, cache=True)
def _above(window, size, least, touched):  # type: ignore[no-untyped-def]
    """List the places of the window that are positive and >= least.

    First by 64s, a loop that is compiled to vector instructions; beyond `size` the window is 0.
    """
    found = 0
    least = max(least, np.float32(1e-30))
    for low in range(0, size, 64):
        block = window[low : low + 64]
        hits = 0
        for here in range(64):
            hits += block[here] >= least
        if hits > 0:
            for here in range(64):
                if block[here] >= least:
                    touched[found] = low + here
                    found += 1
    return found


@numba.njit(nogil=True, cache=True)
def _ones(word):  # type: ignore[no-untyped-def]
    """How many bits are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(nogil=True, cache=True)
def _contains(values, value):  # type: ignore[no-untyped-def]
    for other in values:  # noqa: SIM110  (compiled)
        if other == value:
            return True
    return False


# The hits are a heap with the worst on top: the lowest score, and of equal scores the last row.


@numba.njit(nogil=True, cache=True)
def _better(score, row, other_score, other_row):  # type: ignore[no-untyped-def]
    return score > other_score or (score == other_score and row < other_row)


@numba.njit(nogil=True, cache=True)
def _push(rows, scores, size, score, row):  # type: ignore[no-untyped-def]
    """Add a hit; a full heap loses its worst."""
    if size == len(rows):
        _sink(rows, scores, size, score, row)
        return size
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if not _better(scores[parent], rows[parent], score, row):
            break
        rows[place], scores[place] = rows[parent], scores[parent]
        place = parent
    rows[place], scores[place] = row, score
    return size + 1


@numba.njit(nogil=True, cache=True)
def _sink(rows, scores, size, score, row):  # type: ignore[no-untyped-def]
    """Put a hit in the place of the top of a heap of `size` hits."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _better(scores[child], rows[child], scores[child + 1], rows[child + 1]):
            child += 1
        if not _better(score, row, scores[child], rows[child]):
            break
        rows[place], scores[place] = rows[child], scores[child]
        place = child
    rows[place], scores[place] = row, score


@numba.njit(nogil=True, cache=True)
def _sort_heap(rows, scores, size):  # type: ignore[no-untyped-def]
    """Turn the heap into a list, best first."""
    for last in range(size - 1, 0, -1):
        worst_row, worst_score = rows[0], scores[0]
        _sink(rows, scores, last, scores[last], rows[last])
        rows[last], scores[last] = worst_row, worst_score


@numba.njit(nogil=True, cache=True)
def _add_zero_hits(terms, forbidden, hit_rows, size, texts, starts, rows):  # type: ignore[no-untyped-def]
    """Append texts with a term of the query but score 0 (LMDirichlet): hits for Lucene, in row order."""
    matches = np.zeros(texts, np.bool_)
    for term in terms:
        for place in range(starts[term], starts[term + 1]):
            matches[rows[place]] = True
    for row in forbidden:
        if 0 <= row < texts:
            matches[row] = False
    for hit in range(size):
        matches[hit_rows[hit]] = False
    for row in range(texts):
        if size == len(hit_rows):
            break
        if matches[row]:
            hit_rows[size] = row
            size += 1
