"""The arrays of an embedded index, and how they are built of texts.

What a term adds to a document's score depends on nothing else, so the index stores that number for every
(term, document) pair, term by term, documents in order. The ids of the texts' terms are kept as well: from
them the index of a grown collection is built without analysing the old texts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.errors import InputError
from datamodules.retrieval.base import Ranking
from datamodules.retrieval.embedded.analysis import Analyzer, TermIds
from datamodules.retrieval.embedded.lucene import (
    Statistics,
    bm25,
    length_bytes,
    length_weights,
    lm_dirichlet,
    term_weights,
)
from datamodules.text.counts import count_tokens

# Arrays by the type of their numbers.
Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]

# Texts analysed at once, and postings built at once: what the build holds in memory.
_TEXTS = 4096
_POSTINGS = 1 << 21

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


class InvertedIndex(NamedTuple):
    """The arrays of an index; each is a file of its name. N texts, T terms, P postings, F frequent terms."""

    #: int32: the term ids of all texts, one text after the other.
    text_terms: Ints
    #: int64 [N + 1]: where each text begins in `text_terms`.
    text_starts: Longs
    #: uint8: the terms in UTF-8, one after the other in the order of their ids.
    term_bytes: Bytes
    #: int64 [T + 1]: where each term begins in `term_bytes`.
    term_starts: Longs
    #: int32, a power of two: a hash table of term ids, -1 = free.
    term_table: Ints
    #: int64 [T + 1]: where each term's postings begin.
    posting_starts: Longs
    #: int32 [P]: the texts with the term, ascending.
    posting_rows: Ints
    #: float32 [P]: what the term adds to the score of the text.
    posting_scores: Floats
    #: float32 [T]: the largest of the term's scores.
    term_best: Floats
    #: int32 [T]: the row of a frequent term in the two tables below, -1 for any other.
    term_bitmap: Ints
    #: uint64 [F * W], W = ceil(N / 64): bit r % 64 of word r // 64 is set where text r has the term.
    bitmap_words: Words
    #: int32 [F * W]: how many of the term's postings lie before the word.
    bitmap_ranks: Ints

    @classmethod
    def map(cls, folder: Path) -> InvertedIndex:
        """Map the files of an index."""
        return cls(**{name: _map(folder, name) for name in cls._fields})

    @property
    def num_texts(self) -> int:
        """N."""
        return len(self.text_starts) - 1

    def terms(self) -> Iterator[str]:
        """The terms in the order of their ids."""
        together, starts = self.term_bytes.tobytes(), self.term_starts.tolist()
        return (together[start:end].decode() for start, end in pairwise(starts))

    def find_terms(self, terms: Sequence[str]) -> Ints:
        """The ids of terms [n], -1 where no text has the term."""
        found: Ints = _find_terms(*_utf8(terms), self.term_table, self.term_bytes, self.term_starts)
        return found


def _map(folder: Path, name: str) -> NDArray[Any]:
    path = folder / name
    if path.stat().st_size == 0:  # which can't be mapped
        return np.empty(0, _DTYPES[name])
    # A plain array on top of the map: numpy's own class makes slices and calls slower.
    return np.asarray(np.memmap(path, _DTYPES[name], "r"))


def _utf8(terms: Sequence[str]) -> tuple[Bytes, Longs]:
    """Terms as (bytes one after the other, int64 [terms + 1] starts)."""
    encoded = [term.encode() for term in terms]
    starts = np.zeros(len(terms) + 1, np.int64)
    np.cumsum([len(term) for term in encoded], out=starts[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), starts


def build(
    texts: Sequence[str], ranking: Ranking, folder: Path, progress: bool, after: InvertedIndex | None = None
) -> None:
    """Write the files of an index; see `FolderRetriever._build`."""
    _write_texts(texts, Analyzer(ranking.analyzer), folder, progress, after)
    _write_postings(ranking, folder)
    _write_bitmaps(folder)


def _write_texts(
    texts: Sequence[str], analyzer: Analyzer, folder: Path, progress: bool, after: InvertedIndex | None
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
            for term in after.terms():
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


@numba.njit(nogil=True, cache=True)
def _hash(values: Bytes, start: int, end: int) -> np.uint64:
    """FNV-1a, 64 bits."""
    code = np.uint64(14695981039346656037)
    for place in range(start, end):
        code = (code ^ np.uint64(values[place])) * np.uint64(1099511628211)
    mixed: np.uint64 = code ^ (code >> np.uint64(32))
    return mixed


@numba.njit(nogil=True, cache=True)
def _hash_terms(term_bytes: Bytes, term_starts: Longs) -> Ints:
    """The hash table of a dictionary, at most half full."""
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
def _find_terms(
    wanted: Bytes, wanted_starts: Longs, table: Ints, term_bytes: Bytes, term_starts: Longs
) -> Ints:
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


def _write_postings(ranking: Ranking, folder: Path) -> None:
    """Write the postings of the texts whose term ids are in `folder`."""
    text_terms, text_starts = _map(folder, "text_terms"), _map(folder, "text_starts")
    terms = len(_map(folder, "term_starts")) - 1
    rows, occurrences = count_tokens(text_terms, text_starts, terms)
    lengths = np.diff(text_starts)
    statistics = Statistics(rows=int(np.count_nonzero(lengths)), tokens=len(text_terms))
    by_term = term_weights(ranking, statistics, rows, occurrences)
    by_text = length_weights(ranking, statistics)
    norms = length_bytes(lengths)
    starts = np.zeros(terms + 1, np.int64)
    np.cumsum(rows, out=starts[1:])
    starts.tofile(folder / "posting_starts")
    best = np.zeros(terms, np.float32)
    is_bm25 = ranking.similarity == "BM25"
    with (
        (folder / "posting_rows").open("wb") as rows_file,
        (folder / "posting_scores").open("wb") as scores_file,
    ):
        for low, high in _term_blocks(starts):
            part = starts[low : high + 1] - starts[low]
            posting_rows, frequencies = _postings(text_terms, text_starts, low, part)
            posting_rows.tofile(rows_file)
            weights, most = by_term[low:high], best[low:high]
            scores = _score(posting_rows, frequencies, part, weights, by_text, norms, is_bm25, most)
            scores.tofile(scores_file)
    best.tofile(folder / "term_best")


def _term_blocks(starts: Longs) -> Iterator[tuple[int, int]]:
    """Cut the terms into blocks of about _POSTINGS postings."""
    low = 0
    while low < len(starts) - 1:
        high = int(np.searchsorted(starts, starts[low] + _POSTINGS, side="right")) - 1
        high = max(high, low + 1)
        yield low, high
        low = high


def _write_bitmaps(folder: Path) -> None:
    """Write a bitmap of each frequent term: it tells at once whether and where a text is in its postings."""
    starts, rows = _map(folder, "posting_starts"), _map(folder, "posting_rows")
    num_texts = len(_map(folder, "text_starts")) - 1
    frequent = np.flatnonzero(np.diff(starts) * 32 >= max(num_texts, 1024))
    bitmap = np.full(len(starts) - 1, -1, np.int32)
    bitmap[frequent] = np.arange(len(frequent))
    bitmap.tofile(folder / "term_bitmap")
    with (
        (folder / "bitmap_words").open("wb") as words_file,
        (folder / "bitmap_ranks").open("wb") as ranks_file,
    ):
        for term in frequent:
            words, ranks = _bitmap(rows[starts[term] : starts[term + 1]], -(-num_texts // 64))
            words.tofile(words_file)
            ranks.tofile(ranks_file)


@numba.njit(nogil=True, cache=True)
def _postings(text_terms: Ints, text_starts: Longs, low: int, starts: Longs) -> tuple[Ints, Ints]:
    """Rows of the terms from `low` on and how often each has the term; `starts` says where a term's begin."""
    terms, size = len(starts) - 1, starts[-1]
    rows = np.empty(size, np.int32)
    frequencies = np.zeros(size, np.int32)
    ends = starts[:-1].copy()
    for row in range(len(text_starts) - 1):
        for place in range(text_starts[row], text_starts[row + 1]):
            term = text_terms[place] - low
            if 0 <= term < terms:
                end = ends[term]
                # Texts come in order, so a term that the text had before is the last one written.
                if end > starts[term] and rows[end - 1] == row:
                    frequencies[end - 1] += 1
                else:
                    rows[end] = row
                    frequencies[end] = 1
                    ends[term] = end + 1
    return rows, frequencies


@numba.njit(nogil=True, cache=True)
def _score(
    rows: Ints,
    frequencies: Ints,
    starts: Longs,
    by_term: Doubles,
    by_text: Doubles,
    norms: Bytes,
    is_bm25: bool,
    best: Floats,
) -> Floats:
    """What each term adds to the score of each of its rows; the largest go to `best`."""
    scores = np.empty(len(rows), np.float32)
    for term in range(len(starts) - 1):
        highest = np.float32(0)
        for place in range(starts[term], starts[term + 1]):
            length = by_text[norms[rows[place]]]
            if is_bm25:
                score = bm25(by_term[term], length, frequencies[place])
            else:
                score = lm_dirichlet(by_term[term], length, frequencies[place])
            scores[place] = score
            highest = max(highest, score)
        best[term] = highest
    return scores


@numba.njit(nogil=True, cache=True)
def _bitmap(rows: Ints, size: int) -> tuple[Words, Ints]:
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
