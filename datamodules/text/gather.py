"""From row numbers to a batch: texts shortened and padded, and every word of the batch once.

`bind` numbers the words of a dataset's lexicons. A batch numbers its own words by a scratch array with one cell for
each of them: a cell with the number of this batch contains the word's position, any other cell is stale.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datamodules.batch import TextBatch, as_tensors
from datamodules.core.compiled import njit
from datamodules.core.errors import InputError
from datamodules.text.tokenization import Lexicon
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class TokenTable:
    """A store bound to a vocabulary by `bind`: `gather` reads its texts."""

    store: TokenStore
    vocabulary: Vocabulary
    #: int32: the number of each word of the store's lexicon, among the words of all stores that are bound with it.
    numbers: NDArray[np.int32]
    #: int32 [words] and [words, L]: vocabulary ids and characters of these words.
    ids: NDArray[np.int32]
    chars: NDArray[np.int32]
    #: tokens kept of a text, including special tokens.
    length: int

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [n]: number of words of each text, as kept."""
        return np.minimum(np.diff(self.store.offsets), self.length)


def bind(
    vocabulary: Vocabulary, texts: Sequence[tuple[TokenStore, int]], max_chars: int = 16
) -> list[TokenTable]:
    """Bind token stores, each with the number of tokens that are read of a text, for batches with texts of them all.

    Words are numbered by spelling, from 1; without characters, a word is its vocabulary id.
    """
    if vocabulary.characters is None:
        ids = np.arange(len(vocabulary), dtype=np.int32)
        chars = np.zeros((len(ids), 0), np.int32)
        numbers = [vocabulary.lookup(store.lexicon) for store, _ in texts]
    else:
        words = Lexicon()
        numbers = [np.array([1 + words[word] for word in store.lexicon], np.int32) for store, _ in texts]
        ids = np.append(np.int32(vocabulary.pad_id), vocabulary.lookup(list(words)))
        chars = np.pad(vocabulary.char_table(list(words), max_chars), ((1, 0), (0, 0)))
    bound = zip(texts, numbers, strict=True)
    return [TokenTable(store, vocabulary, each, ids, chars, length) for (store, length), each in bound]


def gather(
    *groups: tuple[TokenTable, NDArray[np.integer]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """Read rows [n] of one or more tables, bound together, and number the words that occur in them.

    The texts of a group are padded together. A model's embedding of a text of group g is `f(word, char)[texts[g]]`.

    Returns:
        word: int64 [U]: vocabulary ids of the distinct words of the batch; entry 0 is padding.
        char: int64 [U, L]: their character ids, 0 = padding, as wide as the longest; [U, 0] without characters.
        texts: for each group int64 [n, T]: positions in `word`, 0 = padding. T is the longest text's, at least 1.
    """
    bound = groups[0][0]
    if any(table.ids is not bound.ids for table, _ in groups):
        raise ValueError("the tables of a batch must be bound together")
    prefix = np.array(bound.vocabulary.prefix, dtype=np.int32)
    suffix = np.array(bound.vocabulary.suffix, dtype=np.int32)
    special = len(prefix) + len(suffix)

    plan = []
    for table, rows in groups:
        if table.length <= special:
            raise InputError(f"max_length={table.length}: must be at least {special + 1}")
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        longest = _longest(table.store.offsets, rows, table.length - special)
        if longest < 0:
            raise IndexError(f"rows {rows.min()}..{rows.max()} of a table with {len(table.store)} rows")
        plan.append((table, rows, np.zeros((len(rows), max(longest + special, 1)), dtype=np.int64)))

    stamp, batch = _scratch.next_batch(len(bound.ids))
    distinct = np.zeros(1 + sum(texts.size for _, _, texts in plan), dtype=np.int32)
    count = 1
    for table, rows, texts in plan:
        tokens, offsets = table.store.tokens, table.store.offsets
        count = _number_words(
            tokens, offsets, table.numbers, rows, prefix, suffix, stamp, batch, distinct, count, texts
        )
    word, char = _describe_words(bound.ids, bound.chars, distinct[:count])
    word[0] = bound.vocabulary.pad_id
    return word, char, [texts for _, _, texts in plan]


def gather_texts(table: TokenTable, rows: NDArray[np.integer]) -> TextBatch:
    """Gather a batch of texts alone."""
    word, char, (text,) = gather((table, rows))
    return TextBatch(**as_tensors({"word": word, "char": char, "text": text}))


def distinct_rows(rows: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows of a batch [B, K], ascending [M], and each one's position [B, K], 0 for row -1."""
    unique, inverse = np.unique(np.ascontiguousarray(rows, dtype=np.int64), return_inverse=True)
    inverse = inverse.reshape(rows.shape)
    if len(unique) and unique[0] == -1:
        return unique[1:], np.maximum(inverse - 1, 0)
    return unique, inverse


class _Scratch(threading.local):
    """The scratch array of a thread, which all tables share: each batch has its own number."""

    def __init__(self) -> None:
        self.stamp = np.zeros(0, dtype=np.int64)
        self.batch = 0

    def next_batch(self, length: int) -> tuple[NDArray[np.int64], int]:
        """Cells for this number of words, and the number of the next batch, which no cell contains."""
        self.batch += 1
        if len(self.stamp) < length:
            self.stamp = np.zeros(2 * length, dtype=np.int64)
        return self.stamp, self.batch


_scratch = _Scratch()


@njit()
def _longest(offsets, rows, limit):  # type: ignore[no-untyped-def]
    """Return the length of the longest text, at most `limit`; -1 if there is no such row."""
    longest = 0
    for row in rows:
        if row < 0 or row >= len(offsets) - 1:
            return -1
        longest = max(longest, min(offsets[row + 1] - offsets[row], limit))
    return longest


@njit()
def _enter(number, text, t, stamp, batch, distinct, count):  # type: ignore[no-untyped-def]
    """Write the position of a word in the batch to `text[t]`; return `count`, the number of words, with a new one."""
    # The upper half of a cell is the batch, the lower half the position.
    cell = stamp[number]
    if cell >> 32 == batch:
        text[t] = cell & 0xFFFFFFFF
        return count
    stamp[number] = batch << 32 | count
    distinct[count] = number
    text[t] = count
    return count + 1


@njit()
def _number_words(  # type: ignore[no-untyped-def]
    tokens, offsets, numbers, rows, prefix, suffix, stamp, batch, distinct, count, texts
):
    """Fill `texts`, enter new words in `distinct` from `count` on and return the new count."""
    limit = texts.shape[1] - len(prefix) - len(suffix)
    for i, row in enumerate(rows):
        text, start = texts[i], offsets[row]
        size = min(offsets[row + 1] - start, limit)
        for t in range(len(prefix)):
            count = _enter(prefix[t], text, t, stamp, batch, distinct, count)
        for t in range(size):
            word = numbers[tokens[start + t]]
            count = _enter(word, text, len(prefix) + t, stamp, batch, distinct, count)
        for t in range(len(suffix)):
            count = _enter(suffix[t], text, len(prefix) + size + t, stamp, batch, distinct, count)
    return count


@njit()
def _describe_words(ids, chars, distinct):  # type: ignore[no-untyped-def]
    """Return vocabulary ids [U] and characters [U, L] of words of the table."""
    length = 0
    for number in distinct:
        while length < chars.shape[1] and chars[number, length] != 0:
            length += 1
    word = np.empty(len(distinct), np.int64)
    char = np.empty((len(distinct), length), np.int64)
    for i, number in enumerate(distinct):
        word[i] = ids[number]
        for j in range(length):
            char[i, j] = chars[number, j]
    return word, char
