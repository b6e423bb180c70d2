"""The arrays of an embedded index: the score of every (term, document) pair, and the term ids of the texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import numpy as np
from xxhash import xxh3_64_intdigest

from datamodules.core.arrays import (
    ArrayWriter,
    Bytes,
    Doubles,
    Floats,
    Ints,
    Longs,
    RowLookup,
    ULongs,
    check_numbers,
    check_starts,
    damaged,
    map_array,
)
from datamodules.core.compiled import njit
from datamodules.core.errors import InputError
from datamodules.core.progress import progress_bar
from datamodules.core.ragged import consecutive, offsets_of
from datamodules.retrieval.base import AnalyzerName, Ranking
from datamodules.retrieval.embedded import lucene
from datamodules.retrieval.embedded.analysis import TermIds
from datamodules.text.tokens import count_tokens

_TEXTS = 4096
_POSTINGS = 1 << 24


class InvertedIndex(NamedTuple):
    """The arrays of an index, each an .npy file. N texts, T terms, P postings, F frequent terms."""

    #: int32: the term ids of all texts, one text after the other.
    text_terms: Ints
    #: int64 [N + 1]: where each text begins in `text_terms`.
    text_starts: Longs
    #: uint8: the terms in UTF-8, in the order of their ids, separated by line feeds.
    terms: Bytes
    #: the ids of terms by their hashes; in two files.
    lookup: RowLookup
    #: int64 [T + 1]: where each term's postings begin.
    posting_starts: Longs
    #: int32 [P]: the texts with the term, ascending.
    posting_rows: Ints
    #: float32 [P]: the term's contribution to the score of the text.
    posting_scores: Floats
    #: float32 [T]: the largest contribution of the term.
    term_best: Floats
    #: float64 [T]: see `lucene.term_weights`.
    term_weights: Doubles
    #: float64 [256]: see `lucene.length_weights`.
    length_weights: Doubles
    #: int32 [T]: the row of a frequent term in the two tables below, -1 for any other.
    term_bitmap: Ints
    #: uint64 [F * W], W = ceil(N / 64): bit r % 64 of word r // 64 is set where text r has the term.
    bitmap_words: ULongs
    #: int32 [F * W]: the number of the term's postings before the word.
    bitmap_ranks: Ints

    @classmethod
    def map(cls, folder: Path) -> InvertedIndex:
        """Map an index; raise a `DamagedError` if a search would read outside of its arrays."""
        arrays = {name: map_array(folder / f"{name}.npy", dtype) for name, dtype in _TYPES.items()}
        index = cls(lookup=RowLookup.open(folder, len(arrays["posting_starts"]) - 1), **arrays)
        index._check(folder)
        return index

    def _check(self, folder: Path) -> None:
        # `text_terms` is checked where it is read: after an addition.
        check_starts(folder / "text_starts.npy", self.text_starts, len(self.text_terms))
        check_starts(folder / "posting_starts.npy", self.posting_starts, len(self.posting_rows))
        texts, terms = len(self.text_starts) - 1, len(self.posting_starts) - 1
        frequent, words = int(self.term_bitmap.max(initial=-1)) + 1, -(-texts // 64)
        lengths = {"posting_scores": len(self.posting_rows), "term_best": terms, "term_bitmap": terms}
        lengths |= {"bitmap_words": frequent * words, "bitmap_ranks": frequent * words}
        lengths |= {"term_weights": terms, "length_weights": 256}
        for name, length in lengths.items():
            if (own := len(getattr(self, name))) != length:
                raise damaged(folder / f"{name}.npy", f"has {own} rows instead of {length}")
        check_numbers(folder / "term_bitmap.npy", self.term_bitmap, frequent, least=-1)
        # The rows of a term ascend if they fall only where the next term begins; then the ends bound the others.
        has_postings = self.posting_starts[1:] > self.posting_starts[:-1]
        first = self.posting_rows[self.posting_starts[:-1][has_postings]]
        last = self.posting_rows[self.posting_starts[1:][has_postings] - 1]
        check_numbers(folder / "posting_rows.npy", first, texts)
        check_numbers(folder / "posting_rows.npy", last, texts)
        falls = np.count_nonzero(self.posting_rows[1:] <= self.posting_rows[:-1])
        if falls != np.count_nonzero(first[1:] <= last[:-1]):
            raise damaged(folder / "posting_rows.npy", "the rows of a term are not ascending")


#: Types of the arrays in files of their own, from their annotations `NDArray[type]`.
_TYPES = {
    name: get_args(get_args(kind)[1])[0]
    for name, kind in get_type_hints(InvertedIndex).items()
    if kind is not RowLookup
}


def term_hashes(terms: Collection[str]) -> ULongs:
    """Return a 64-bit hash of each term [n]; among a million terms, two collide with probability 3e-8."""
    return np.fromiter(map(xxh3_64_intdigest, map(str.encode, terms)), np.uint64, len(terms))


def build(
    texts: Sequence[str], ranking: Ranking, folder: Path, old: tuple[InvertedIndex, Longs] | None
) -> None:
    """Write the files of an index; see `FolderRetriever._build`."""
    _write_texts(texts, ranking.analyzer, folder, old)
    _write_postings(ranking, folder)
    _write_bitmaps(folder)


def _write_texts(
    texts: Sequence[str], analyzer: AnalyzerName, folder: Path, old: tuple[InvertedIndex, Longs] | None
) -> None:
    """Write the texts' term ids and the dictionary of terms; texts of the old index are not analyzed again."""
    if len(texts) >= 2**31:
        raise InputError(f"{folder}: {len(texts)} texts, but an index holds at most {2**31 - 1}")
    term_ids = TermIds(analyzer)
    known = np.full(len(texts), -1) if old is None else old[1]
    if old is not None:
        check_numbers(folder / "text_terms.npy", old[0].text_terms, len(old[0].posting_starts) - 1)
    new_ids = np.empty(0, np.int32) if old is None else _take_terms(*old, term_ids)
    starts = [np.zeros(1, np.int64)]
    with (
        ArrayWriter(folder / "text_terms.npy", np.int32) as writer,
        progress_bar(desc="index", total=int((known < 0).sum())) as bar,
    ):
        for first in range(0, len(texts), _TEXTS):
            rows = known[first : first + _TEXTS]
            fresh = np.flatnonzero(rows < 0)
            block = texts[first : first + _TEXTS] if len(fresh) else ()
            ids, bounds = term_ids.encode([block[row] for row in fresh.tolist()])
            if old is not None:
                ids, bounds = _merge_texts(old[0], rows, new_ids, ids, bounds)
            starts.append(writer.length + bounds[1:])
            writer.write(ids)
            bar.update(len(fresh))
    np.save(folder / "text_starts.npy", np.concatenate(starts))
    np.save(folder / "terms.npy", np.frombuffer("\n".join(term_ids.ids).encode(), np.uint8))
    RowLookup.of(term_hashes(term_ids.ids)).save(folder)


def _take_terms(old: InvertedIndex, known: Longs, term_ids: TermIds) -> Ints:
    """Number the terms of the known texts, which are all that is kept; return the new number of each old one [T]."""
    terms = old.terms.tobytes().decode(errors="replace").split("\n") if len(old.terms) else []
    gone = np.delete(np.arange(len(old.text_starts) - 1), known[known >= 0])
    counts = np.diff(old.posting_starts)
    lengths = old.text_starts[gone + 1] - old.text_starts[gone]
    text_terms = old.text_terms[consecutive(old.text_starts[gone], lengths).values].astype(np.int64)
    distinct = np.unique(np.repeat(np.arange(len(gone)), lengths) * len(counts) + text_terms)
    np.subtract.at(counts, distinct % max(len(counts), 1), 1)
    kept = [terms[term] for term in np.flatnonzero(counts).tolist()] if (counts == 0).any() else terms
    term_ids.ids.update(zip(kept, range(len(kept)), strict=True))
    return (np.cumsum(counts > 0) - 1).astype(np.int32)


def _merge_texts(
    old: InvertedIndex, rows: Longs, new_ids: Ints, ids: Ints, bounds: Longs
) -> tuple[Ints, Longs]:
    """Return term ids and starts of a block of texts: of rows of the old index or, for row -1, of the next new text."""
    is_known = rows >= 0
    first = old.text_starts[rows[is_known]]
    known = consecutive(first, old.text_starts[rows[is_known] + 1] - first)
    lengths = np.empty(len(rows), np.int64)
    lengths[is_known], lengths[~is_known] = known.counts, np.diff(bounds)
    of_known = np.repeat(is_known, lengths)
    merged = np.empty(len(of_known), np.int32)
    merged[of_known] = new_ids[old.text_terms[known.values]]
    merged[~of_known] = ids
    return merged, offsets_of(lengths)


def _write_postings(ranking: Ranking, folder: Path) -> None:
    """Write the postings of the texts whose term ids are in `folder`."""
    text_terms = map_array(folder / "text_terms.npy", np.int32)
    text_starts = map_array(folder / "text_starts.npy", np.int64)
    num_terms = len(RowLookup.open(folder).keys)
    check_numbers(folder / "text_terms.npy", text_terms, num_terms)
    rows, occurrences = count_tokens(text_terms, text_starts, num_terms)
    lengths = np.diff(text_starts)
    size = int(np.count_nonzero(lengths)), len(text_terms)
    by_term = lucene.term_weights(ranking, *size, rows, occurrences)
    by_text = lucene.length_weights(ranking, *size)
    np.save(folder / "term_weights.npy", by_term)
    np.save(folder / "length_weights.npy", by_text)
    norms = lucene.length_bytes(lengths)
    starts = offsets_of(rows)
    best = np.zeros(num_terms, np.float32)
    with (
        ArrayWriter(folder / "posting_rows.npy", np.int32) as rows_writer,
        ArrayWriter(folder / "posting_scores.npy", np.float32) as scores_writer,
    ):
        for low, high in _term_blocks(starts):
            part = starts[low : high + 1] - starts[low]
            posting_rows, frequencies = _postings(text_terms, text_starts, low, part)
            rows_writer.write(posting_rows)
            weights, most = by_term[low:high], best[low:high]
            scores_writer.write(
                _score(posting_rows, frequencies, part, weights, by_text, norms, lucene.factor(ranking), most)
            )
    np.save(folder / "posting_starts.npy", starts)
    np.save(folder / "term_best.npy", best)


def _term_blocks(starts: Longs) -> Iterator[tuple[int, int]]:
    """Cut the terms into blocks of about _POSTINGS postings."""
    low = 0
    while low < len(starts) - 1:
        high = int(np.searchsorted(starts, starts[low] + _POSTINGS, side="right")) - 1
        high = max(high, low + 1)
        yield low, high
        low = high


def _write_bitmaps(folder: Path) -> None:
    """Write a bitmap of each frequent term, which locates a text in its postings in constant time."""
    starts = map_array(folder / "posting_starts.npy", np.int64)
    rows = map_array(folder / "posting_rows.npy", np.int32)
    num_texts = len(map_array(folder / "text_starts.npy", np.int64)) - 1
    frequent = np.flatnonzero(np.diff(starts) * 32 >= max(num_texts, 1024))
    bitmap = np.full(len(starts) - 1, -1, np.int32)
    bitmap[frequent] = np.arange(len(frequent))
    np.save(folder / "term_bitmap.npy", bitmap)
    num_words = -(-num_texts // 64)
    with (
        ArrayWriter(folder / "bitmap_words.npy", np.uint64) as words_writer,
        ArrayWriter(folder / "bitmap_ranks.npy", np.int32) as ranks_writer,
    ):
        for term in frequent:
            term_rows = rows[starts[term] : starts[term + 1]]
            has_term = np.zeros(64 * num_words, np.bool_)
            has_term[term_rows] = True
            words_writer.write(np.packbits(has_term, bitorder="little").view("<u8"))
            ranks_writer.write(offsets_of(np.bincount(term_rows >> 6, minlength=num_words))[:-1])


@njit()
def _postings(text_terms: Ints, text_starts: Longs, low: int, starts: Longs) -> tuple[Ints, Ints]:
    """Return rows and frequencies of the terms from `low` on; the postings of term low + i begin at `starts[i]`."""
    terms, size = len(starts) - 1, starts[-1]
    rows = np.empty(size, np.int32)
    frequencies = np.ones(size, np.int32)
    ends, last = starts[:-1].copy(), np.full(terms, -1)
    for row in range(len(text_starts) - 1):
        for position in range(text_starts[row], text_starts[row + 1]):
            term = text_terms[position] - low
            if 0 <= term < terms:
                end = ends[term]
                # Texts come in order, so the posting of a repeated term is the last one written.
                if last[term] == row:
                    frequencies[end - 1] += 1
                else:
                    rows[end] = row
                    ends[term], last[term] = end + 1, row
    return rows, frequencies


@njit()
def _score(
    rows: Ints,
    frequencies: Ints,
    starts: Longs,
    by_term: Doubles,
    by_text: Doubles,
    norms: Bytes,
    factor: np.float32,
    best: Floats,
) -> Floats:
    """Return the contribution of each term to the score of each of its rows; write the largest ones to `best`."""
    scores = np.empty(len(rows), np.float32)
    for term in range(len(starts) - 1):
        highest = np.float32(0)
        for position in range(starts[term], starts[term + 1]):
            length = by_text[norms[rows[position]]]
            score = lucene.contribution(by_term[term], length, frequencies[position], np.float32(1), factor)
            scores[position] = score
            highest = max(highest, score)
        best[term] = highest
    return scores
