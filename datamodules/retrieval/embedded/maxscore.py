"""The search of an embedded index: exact, and without the work that can't change the result.

The terms of a query are sorted by the most that they can add. Once k hits are known, a text that has only
the last few terms can't become a hit if all of these together add less than the k-th best score (MaxScore:
Turtle and Flood 1995). So the postings of the first, `essential` terms are added up in full; the others, which
are the frequent words with long postings, are looked up only for texts that can still become hits. The terms
are always added in the same order, so the sums do not depend on what was skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from datamodules.retrieval.base import Hits
from datamodules.retrieval.embedded.inverted_index import Floats, Ints, InvertedIndex, Longs, Words

# Texts are scored in windows, small at first (to find good hits early), then as many as fit the cache.
_FIRST_WINDOW = 2048
_LARGEST_WINDOW = 1 << 16
# Rounding of a sum of up to 512 float32 numbers: a bound is trusted to this part only.
_MARGIN = np.float32(0.9999)
# Looking a term up costs far more than adding a posting up. So terms stay essential until the rest could add
# no more than this part of what a hit needs: then few texts are worth a look.
_SHARE = np.float32(0.4)


class Queries(NamedTuple):
    """n queries."""

    #: int64 [n + 1]: where each query's terms begin.
    starts: Longs
    #: int32: the different terms of each query that the index has.
    terms: Ints
    #: float32: how often each occurs in its query.
    counts: Floats
    #: int64 [n + 1]: where each query's excluded rows begin.
    excluded_starts: Longs
    #: int64: rows that a query must not get.
    excluded: Longs


@numba.njit(nogil=True, cache=True)
def count_terms(ids: Ints, starts: Longs, known: Ints, most: int) -> tuple[Longs, Ints, Floats, bool]:
    """Starts, terms and counts of `Queries`, and whether a query had more than `most` different terms.

    Args:
        ids: the queries' terms in numbers of their own, and
        starts: where each query begins among them; see `TermIds.encode`.
        known: the index's id of each of these numbers, -1 where it has no such term.
        most: different terms of a query that are used: the first ones.
    """
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


class _Terms(NamedTuple):
    """The n terms of one query, first those that can add most."""

    #: int32 [n]: their ids.
    ids: Ints
    #: float32 [n]: how often each occurs in the query.
    counts: Floats
    #: float32 [n + 1]: the most that terms i, i + 1, ... add together.
    rest: Floats
    #: int64 [n]: where the postings of the present window begin, and
    begins: Longs
    #: int64 [n]: where they end, -1 = not looked up yet;
    ends: Longs
    #: int64 [n]: where all postings of the term end.
    stops: Longs


# Compiled code counts the references to every array of a tuple that it hands on, which takes longer than to
# look a text up. So tuples go to functions that are called once a window, and arrays to those for one text.


@numba.njit(nogil=True, cache=True)
def search(index: InvertedIndex, queries: Queries, first: int, hits: Hits, zero_hits: bool) -> None:
    """Answer queries first, first + 1, ... into `hits`, as many as it has room for.

    Args:
        index: what is searched.
        queries: the queries.
        first: number of the first one to answer.
        hits: rows -1 and scores 0, to be filled.
        zero_hits: whether a text with a term of the query is a hit even if its score is 0.
    """
    window = np.zeros(_LARGEST_WINDOW, np.float32)
    touched = np.empty(_LARGEST_WINDOW, np.int32)
    for i in range(len(hits.rows)):
        query = first + i
        part = slice(queries.starts[query], queries.starts[query + 1])
        terms = _sort_terms(index, queries.terms[part], queries.counts[part])
        excluded = queries.excluded[queries.excluded_starts[query] : queries.excluded_starts[query + 1]]
        best = Hits(hits.rows[i], hits.scores[i])
        size = _search(index, terms, excluded, best, window, touched)
        _sort_heap(best.rows, best.scores, size)
        if zero_hits and size < len(best.rows):
            _add_zero_hits(index, terms.ids, excluded, best.rows, size)


@numba.njit(nogil=True, cache=True)
def _sort_terms(index: InvertedIndex, ids: Ints, counts: Floats) -> _Terms:
    order = np.argsort(-(index.term_best[ids] * counts))
    ids, counts = ids[order], counts[order]
    rest = np.zeros(len(ids) + 1, np.float32)
    for i in range(len(ids) - 1, -1, -1):
        rest[i] = rest[i + 1] + index.term_best[ids[i]] * counts[i]
    begins = index.posting_starts[ids]
    return _Terms(ids, counts, rest, begins, begins.copy(), index.posting_starts[ids + 1])


@numba.njit(nogil=True, cache=True)
def _search(
    index: InvertedIndex, terms: _Terms, excluded: Longs, heap: Hits, window: Floats, touched: Ints
) -> int:
    """Fill the heap with the best texts of positive score; returns how many there are.

    `window` is 0 before and after; `touched` is room for as many numbers.
    """
    texts = len(index.text_starts) - 1
    essential = len(terms.ids)
    size = 0
    low, width = 0, _FIRST_WINDOW
    while low < texts:
        threshold = _threshold(heap.scores, size)
        while essential > 0 and terms.rest[essential - 1] < _SHARE * threshold:
            essential -= 1
        if essential == 0:
            break
        high = min(low + width, texts)
        width = min(2 * width, _LARGEST_WINDOW)
        few = _locate(index, terms, essential, low, high) * 16 < high - low
        if few:
            found = _add_few(index, terms, essential, low, window, touched)
        else:
            _add_many(index, terms, essential, low, window)
            found = _above(window, high - low, threshold - terms.rest[essential], touched)
        size = _choose(index, terms, essential, low, high, touched[:found], excluded, heap, size, window)
        if not few:
            window[: high - low] = 0
        low = high
    return size


@numba.njit(nogil=True, cache=True)
def _threshold(heap_scores: Floats, size: int) -> np.float32:
    """What a text must be able to reach: the k-th best score, less the margin; 0 as long as there are fewer."""
    reached: np.float32 = heap_scores[0] * _MARGIN if size == len(heap_scores) else np.float32(0)
    return reached


@numba.njit(nogil=True, cache=True)
def _locate(index: InvertedIndex, terms: _Terms, essential: int, low: int, high: int) -> int:
    """Find the postings of the essential terms in the texts low..high; returns how many there are."""
    rows, begins, ends, stops = index.posting_rows, terms.begins, terms.ends, terms.stops
    total = 0
    for i in range(essential):
        begins[i] = _skip(rows, begins[i], stops[i], low)
        ends[i] = _skip(rows, begins[i], stops[i], high)
        total += ends[i] - begins[i]
    ends[essential:] = -1
    return total


@numba.njit(nogil=True, cache=True)
def _add_few(
    index: InvertedIndex, terms: _Terms, essential: int, low: int, window: Floats, touched: Ints
) -> int:
    """Add up the essential terms' scores in the window, and list the texts that have any."""
    rows, scores = index.posting_rows, index.posting_scores
    found = 0
    for i in range(essential):
        count = terms.counts[i]
        for place in range(terms.begins[i], terms.ends[i]):
            here = rows[place] - low
            if window[here] == 0:
                touched[found] = here
                found += 1
            window[here] += scores[place] * count
    return found


@numba.njit(nogil=True, cache=True)
def _add_many(index: InvertedIndex, terms: _Terms, essential: int, low: int, window: Floats) -> None:
    """Add up the essential terms' scores in the window."""
    rows, scores = index.posting_rows, index.posting_scores
    for i in range(essential):
        count = terms.counts[i]
        for place in range(terms.begins[i], terms.ends[i]):
            window[rows[place] - low] += scores[place] * count


@numba.njit(nogil=True, cache=True)
def _choose(
    index: InvertedIndex,
    terms: _Terms,
    essential: int,
    low: int,
    high: int,
    candidates: Ints,
    excluded: Longs,
    heap: Hits,
    size: int,
    window: Floats,
) -> int:
    """Complete the scores of the candidates that can still become hits, and put the hits into the heap."""
    starts, rows, scores = index.posting_starts, index.posting_rows, index.posting_scores
    bitmaps, words, ranks = index.term_bitmap, index.bitmap_words, index.bitmap_ranks
    ids, counts, rest, begins, ends, stops = terms
    heap_rows, heap_scores = heap
    n, num_words = len(ids), (len(index.text_starts) - 1 + 63) >> 6
    threshold = _threshold(heap_scores, size)
    for here in candidates:
        score, row = window[here], low + here
        window[here] = 0  # a text may be listed again
        if score <= 0:
            continue
        i = essential
        while i < n and score + rest[i] >= threshold:
            bitmap = bitmaps[ids[i]]
            if bitmap >= 0:
                place = _find_in_bitmap(words, ranks, bitmap * num_words, starts[ids[i]], row)
            else:
                if ends[i] < 0:
                    begins[i] = _skip(rows, begins[i], stops[i], low)
                    ends[i] = _skip(rows, begins[i], stops[i], high)
                place = _lower_bound(rows, begins[i], ends[i], row)
                if place == ends[i] or rows[place] != row:
                    place = -1
            if place >= 0:
                score += scores[place] * counts[i]
            i += 1
        if i < n or (size == len(heap_rows) and not _better(score, row, heap_scores[0], heap_rows[0])):
            continue
        if not _contains(excluded, row):
            size = _push(heap_rows, heap_scores, size, score, row)
            threshold = _threshold(heap_scores, size)
    return size


@numba.njit(nogil=True, cache=True)
def _find_in_bitmap(words: Words, ranks: Ints, first: int, start: int, row: int) -> int:
    """The place of a row in postings that begin at `start`, their bitmap at word `first`; -1 if it isn't there."""
    word, bit = first + (row >> 6), np.uint64(row & 63)
    if not (words[word] >> bit) & np.uint64(1):
        return -1
    before = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
    place: int = start + ranks[word] + _ones(before)
    return place


@numba.njit(nogil=True, cache=True)
def _skip(rows: Ints, place: int, end: int, row: int) -> int:
    """The first place from `place` on with a row >= `row`, found in growing steps."""
    step = 1
    while place + step < end and rows[place + step] < row:
        place += step
        step *= 2
    first: int = _lower_bound(rows, place, min(place + step, end), row)
    return first


@numba.njit(nogil=True, cache=True)
def _lower_bound(rows: Ints, low: int, high: int, row: int) -> int:
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(nogil=True, cache=True)
def _above(window: Floats, size: int, least: np.float32, touched: Ints) -> int:
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
def _ones(word: np.uint64) -> np.int64:
    """How many bits are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    ones: np.int64 = np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return ones


@numba.njit(nogil=True, cache=True)
def _contains(values: Longs, value: int) -> bool:
    for other in values:  # noqa: SIM110  (compiled)
        if other == value:
            return True
    return False


# The hits are a heap with the worst on top: the lowest score, and of equal scores the last row.


@numba.njit(nogil=True, cache=True)
def _better(score: np.float32, row: int, other_score: np.float32, other_row: int) -> bool:
    return bool(score > other_score or (score == other_score and row < other_row))


@numba.njit(nogil=True, cache=True)
def _push(rows: Ints, scores: Floats, size: int, score: np.float32, row: int) -> int:
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
def _sink(rows: Ints, scores: Floats, size: int, score: np.float32, row: int) -> None:
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
def _sort_heap(rows: Ints, scores: Floats, size: int) -> None:
    """Turn the heap into a list, best first."""
    for last in range(size - 1, 0, -1):
        worst_row, worst_score = rows[0], scores[0]
        _sink(rows, scores, last, scores[last], rows[last])
        rows[last], scores[last] = worst_row, worst_score


@numba.njit(nogil=True, cache=True)
def _add_zero_hits(index: InvertedIndex, terms: Ints, excluded: Longs, hit_rows: Ints, size: int) -> None:
    """Append texts with a term of the query but score 0 (LMDirichlet): hits for Lucene, in row order."""
    texts, starts, rows = len(index.text_starts) - 1, index.posting_starts, index.posting_rows
    matches = np.zeros(texts, np.bool_)
    for term in terms:
        for place in range(starts[term], starts[term + 1]):
            matches[rows[place]] = True
    for row in excluded:
        if 0 <= row < texts:
            matches[row] = False
    for hit in range(size):
        matches[hit_rows[hit]] = False
    for row in range(texts):
        if matches[row]:
            hit_rows[size] = row
            size += 1
            if size == len(hit_rows):
                break
