"""The search of an embedded index: exact, and without work that cannot change the result.

The terms of a query are sorted by the most that they can contribute. Once k hits are known, a text that has only the
last few terms is no hit if all of these together contribute less than the k-th best score (MaxScore: Turtle and Flood
1995). So only the postings of the first, `essential` terms are added up completely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from datamodules.core.arrays import Doubles, Floats, Ints, Longs, ULongs
from datamodules.core.compiled import njit
from datamodules.retrieval.base import LAST_ROW
from datamodules.retrieval.embedded import lucene
from datamodules.retrieval.embedded.inverted_index import InvertedIndex
from datamodules.retrieval.heap import push

# Texts are scored in windows, small at first (to find good hits early), then as many as fit the cache. Their sums are
# float64, as in Lucene, so that scores have the same bits.
_FIRST_WINDOW = 2048
_LARGEST_WINDOW = 1 << 16
# Factor of a bound that allows for rounding in a sum of up to 512 float32 numbers.
_MARGIN = np.float32(0.9999)
# Looking a term up costs far more than adding a posting. So terms stay essential until the rest could contribute no
# more than this part of the k-th best score: then few texts need a look-up.
_SHARE = np.float32(0.4)


class Queries(NamedTuple):
    """n queries."""

    #: int64 [n + 1]: where each query's terms begin.
    starts: Longs
    #: int32: the different terms of each query that the index has.
    terms: Ints
    #: float32: the number of times that each occurs in its query.
    counts: Floats
    #: int64 [n + 1]: where each query's excluded rows begin.
    excluded_starts: Longs
    #: int64: rows that are no hits of the query.
    excluded: Longs


@njit()
def count_terms(ids: Ints, starts: Longs, known: Ints, most: int) -> tuple[Longs, Ints, Floats, bool]:
    """Return starts, terms and counts of `Queries`, and whether a query had more than `most` different terms."""
    query_starts = np.zeros(len(starts), np.int64)
    terms = np.empty(len(ids), np.int32)
    counts = np.zeros(len(ids), np.float32)
    # The position in `terms` of each number in the current query; -1 = not met yet, -2 = not in the index.
    position_of = np.full(len(known), -1, np.int64)
    size = 0
    is_cut = False
    for query in range(len(starts) - 1):
        different = 0
        numbers = ids[starts[query] : starts[query + 1]]
        for number in numbers:
            if position_of[number] == -1:
                if different == most:
                    is_cut = True
                    continue
                different += 1
                position_of[number] = -2
                if known[number] >= 0:
                    position_of[number] = size
                    terms[size] = known[number]
                    size += 1
            if position_of[number] >= 0:
                counts[position_of[number]] += 1
        position_of[numbers] = -1
        query_starts[query + 1] = size
    return query_starts, terms[:size], counts[:size], is_cut


class _Terms(NamedTuple):
    """The n terms of one query, those that can contribute most first, and their numbers in the query [n]."""

    ids: Ints
    counts: Floats
    #: float32 [n + 1]: the most that terms i, i + 1, ... contribute together.
    rest: Floats
    #: int64 [n]: where the postings of the current window begin.
    begins: Longs
    #: int64 [n]: where they end, -1 = not looked up yet.
    ends: Longs
    #: int64 [n]: where all postings of the term end.
    stops: Longs
    #: see `lucene.factor`.
    factor: np.float32


# Compiled code counts the references to all arrays of a tuple that it passes on. So tuples are passed to functions that
# are called once a window, and arrays to those for one text.


@njit()
def search(index: InvertedIndex, queries: Queries, keys: Longs, factor: np.float32) -> None:
    """Replace the zeros `keys` [m, k] by the keys of the hits of m queries, see `Hits.of_keys` and `lucene.factor`."""
    window = np.zeros(_LARGEST_WINDOW)
    touched = np.empty(_LARGEST_WINDOW, np.int32)
    for query in range(len(keys)):
        heap = keys[query]
        part = slice(queries.starts[query], queries.starts[query + 1])
        terms = _sort_terms(index, queries.terms[part], queries.counts[part], factor)
        excluded = queries.excluded[queries.excluded_starts[query] : queries.excluded_starts[query + 1]]
        _search(index, terms, excluded, heap, window, touched)
        heap[:] = -np.sort(-heap)
        if heap[-1] == 0:
            _add_zero_hits(index, terms.ids, excluded, heap)


@njit()
def _sort_terms(index: InvertedIndex, ids: Ints, counts: Floats, factor: np.float32) -> _Terms:
    order = np.argsort(-(index.term_best[ids] * counts))
    ids, counts = ids[order], counts[order]
    rest = np.zeros(len(ids) + 1, np.float32)
    for i in range(len(ids) - 1, -1, -1):
        rest[i] = rest[i + 1] + index.term_best[ids[i]] * counts[i]
    begins = index.posting_starts[ids]
    return _Terms(ids, counts, rest, begins, begins.copy(), index.posting_starts[ids + 1], factor)


@njit()
def _search(
    index: InvertedIndex, terms: _Terms, excluded: Longs, heap: Longs, window: Doubles, touched: Ints
) -> None:
    """Fill the heap with the best texts of positive score; `window` is 0 before and after."""
    texts = len(index.text_starts) - 1
    essential = len(terms.ids)
    low, width = 0, _FIRST_WINDOW
    while low < texts:
        threshold = _threshold(heap)
        while essential > 0 and terms.rest[essential - 1] < _SHARE * threshold:
            essential -= 1
        if essential == 0:
            break
        high = min(low + width, texts)
        width = min(2 * width, _LARGEST_WINDOW)
        few = _locate(index, terms, essential, low, high) * 16 < high - low
        count = _add(index, terms, essential, low, window, touched, few)
        if not few:
            count = _above(window, high - low, np.float64(threshold - terms.rest[essential]), touched)
        _choose(index, terms, essential, low, high, touched[:count], excluded, heap, window)
        if not few:
            window[: high - low] = 0
        low = high


@njit()
def _threshold(heap: Longs) -> np.float32:
    """Return the score that a hit must reach: the k-th best one less the margin, 0 while there are fewer hits."""
    return np.int32(heap[0] >> 32).view(np.float32) * _MARGIN


@njit()
def _locate(index: InvertedIndex, terms: _Terms, essential: int, low: int, high: int) -> int:
    """Find the postings of the essential terms in the texts low..high and return their number."""
    rows, begins, ends, stops = index.posting_rows, terms.begins, terms.ends, terms.stops
    total = 0
    for i in range(essential):
        begins[i] = _lower_bound(rows, begins[i], stops[i], low)
        ends[i] = _lower_bound(rows, begins[i], stops[i], high)
        total += ends[i] - begins[i]
    ends[essential:] = -1
    return total


@njit()
def _add(
    index: InvertedIndex, terms: _Terms, essential: int, low: int, window: Doubles, touched: Ints, few: bool
) -> int:
    """Add the essential terms' scores to the window; if they are few, list their texts and return the number."""
    rows, scores = index.posting_rows, index.posting_scores
    size = 0
    for i in range(essential):
        count = terms.counts[i]
        for position in range(terms.begins[i], terms.ends[i]):
            here = rows[position] - low
            if few and window[here] == 0:
                touched[size] = here
                size += 1
            window[here] += np.float64(scores[position] * count)
    return size


@njit()
def _choose(
    index: InvertedIndex,
    terms: _Terms,
    essential: int,
    low: int,
    high: int,
    candidates: Ints,
    excluded: Longs,
    heap: Longs,
    window: Doubles,
) -> None:
    """Complete the scores of the candidates that can still become hits, and put the hits into the heap."""
    starts, rows, scores = index.posting_starts, index.posting_rows, index.posting_scores
    bitmaps, words, ranks = index.term_bitmap, index.bitmap_words, index.bitmap_ranks
    ids, counts, rest, begins, ends, stops, factor = terms
    n, num_words = len(ids), (len(index.text_starts) - 1 + 63) >> 6
    threshold, is_repeated = _threshold(heap), (counts > 2).any()
    for here in candidates:
        score, row = window[here], low + here
        window[here] = 0  # a text may be listed again
        if score <= 0:
            continue
        i = essential
        while i < n and score + rest[i] >= threshold:
            bitmap = bitmaps[ids[i]]
            if bitmap >= 0:
                position = _find_in_bitmap(words, ranks, bitmap * num_words, starts[ids[i]], stops[i], row)
            else:
                if ends[i] < 0:
                    begins[i] = _lower_bound(rows, begins[i], stops[i], low)
                    ends[i] = _lower_bound(rows, begins[i], stops[i], high)
                position = _lower_bound(rows, begins[i], ends[i], row)
                if position == ends[i] or rows[position] != row:
                    position = -1
            if position >= 0:
                score += np.float64(scores[position] * counts[i])
            i += 1
        if i < n or score < threshold:
            continue
        if is_repeated:
            score += _rounding(index, ids, counts, row, factor)
        key = np.int64(np.float32(score).view(np.int32)) << 32 | (LAST_ROW - row)  # see `Hits.of_keys`
        if key > heap[0] and row not in excluded:
            push(heap, key)
            threshold = _threshold(heap)


@njit()
def _rounding(index: InvertedIndex, ids: Ints, counts: Floats, row: int, factor: np.float32) -> float:
    """Return what the score of a row lacks since Lucene multiplies the weight of a term by its count, not its score.

    These are the same for counts of one and two. A score is an exact sum: float64 has 29 more bits than its terms.
    """
    text = index.text_terms[index.text_starts[row] : index.text_starts[row + 1]]
    length = index.length_weights[np.searchsorted(lucene.LENGTHS, len(text), side="right") - 1]
    missing = 0.0
    for i in range(len(ids)):
        term, count, frequency = ids[i], counts[i], 0
        if count > 2:
            for own in text:
                frequency += own == term
        if frequency > 0:
            weight = index.term_weights[term]
            missing += lucene.contribution(weight, length, frequency, count, factor)
            missing -= lucene.contribution(weight, length, frequency, np.float32(1), factor) * count
    return missing


@njit()
def _find_in_bitmap(words: ULongs, ranks: Ints, first: int, start: int, stop: int, row: int) -> int:
    """Return the position of a row in the postings start..stop, with a bitmap from word `first` on; -1 = missing."""
    word, bit = first + (row >> 6), np.uint64(row & 63)
    if not (words[word] >> bit) & np.uint64(1):
        return -1
    before = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
    position: int = start + ranks[word] + _ones(before)
    # Ranks are not checked when the index is opened.
    return position if start <= position < stop else -1


@njit()
def _lower_bound(rows: Ints, low: int, high: int, row: int) -> int:
    """Return the first position in low..high with a row >= `row`."""
    while low < high:
        middle = (low + high) >> 1
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@njit()
def _above(window: Doubles, size: int, least: np.float64, touched: Ints) -> int:
    """List the positions of the window that are positive and >= least, and return their number."""
    count = 0
    least = max(least, np.float64(1e-30))
    # The first loop over 64 positions is compiled to vector instructions; beyond `size` the window is 0.
    for low in range(0, size, 64):
        block = window[low : low + 64]
        hits = 0
        for here in range(64):
            hits += block[here] >= least
        if hits > 0:
            for here in range(64):
                if block[here] >= least:
                    touched[count] = low + here
                    count += 1
    return count


@njit()
def _ones(word: np.uint64) -> int:
    """Return the number of bits that are set; the compiler makes one instruction of the loop."""
    count = 0
    while word:
        word &= word - np.uint64(1)
        count += 1
    return count


@njit()
def _add_zero_hits(index: InvertedIndex, terms: Ints, excluded: Longs, keys: Longs) -> None:
    """Append texts with a term of the query but score 0 (LMDirichlet, a huge k1): hits for Lucene, in row order."""
    texts, starts, rows = len(index.text_starts) - 1, index.posting_starts, index.posting_rows
    matches = np.zeros(0, np.bool_)
    for term in terms:
        for position in range(starts[term], starts[term + 1]):
            if index.posting_scores[position] == 0:
                if len(matches) == 0:
                    matches = np.zeros(texts, np.bool_)
                matches[rows[position]] = True
    if len(matches) == 0:
        return
    for row in excluded:
        if 0 <= row < texts:
            matches[row] = False
    size = np.count_nonzero(keys)
    for key in keys[:size]:
        matches[LAST_ROW - (key & LAST_ROW)] = False
    zero_rows = np.flatnonzero(matches)[: len(keys) - size]
    keys[size : size + len(zero_rows)] = LAST_ROW - zero_rows
