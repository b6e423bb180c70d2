"""Pre-trained word vectors: GloVe and word2vec text files, and their coverage of the data."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import binary_lines, is_number
from datamodules.text.tokens import TokenStore, word_counts
from datamodules.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class VectorFile:
    """The kept lines of a vector file."""

    #: row of `values` of each kept word, in the order of the file.
    rows: dict[str, int]
    #: float32 [kept words, d].
    values: NDArray[np.float32]
    #: the file, for messages.
    source: str

    def find(self, word: str) -> int:
        """Return the row of a word, or else of its lower-cased form; -1 if the file has neither."""
        row = self.rows.get(word)
        return self.rows.get(word.lower(), -1) if row is None else row

    def describe_coverage(self, stores: Sequence[TokenStore]) -> str:
        """Return a line for the log: the distinct words of texts, and their tokens, that have a vector."""
        counts = word_counts(stores)
        known = {word: count for word, count in counts.items() if self.find(word) >= 0}
        lowered = {word: count for word, count in known.items() if word not in self.rows}
        words = _share(len(known), len(counts), len(lowered))
        tokens = _share(sum(known.values()), counts.total(), sum(lowered.values()))
        return f"{self.source}: vectors for {words} words and {tokens} tokens"


def _share(known: int, total: int, lowered: int) -> str:
    return f"{known:,} of {total:,} ({known / max(total, 1):.1%}, {lowered:,} of them lower-cased)"


def read_vectors(path: str | Path, words: Collection[str] = (), most_frequent: int = 0) -> VectorFile:
    """Read some lines of a GloVe or word2vec text file.

    The last d fields of a line are the vector, everything before them, spaces included, is the word. Of lines with the
    same word the first counts. Kept are `words`, in lower case where the file has only that, and the first
    `most_frequent` words.
    """
    wanted = {form.encode("utf-8", "surrogatepass") for word in words for form in (word, word.lower())}
    beginnings = {word.partition(b" ")[0] for word in wanted}

    line_of: dict[bytes, int] = {}
    values = array("f")
    number = dimension = 0
    promised = None
    for number, line in enumerate(binary_lines(path), start=1):
        if number == 1 and (header := _header(line)):
            promised, dimension = header
            most_frequent += 1
            continue
        if dimension == 0:
            dimension = _dimension(line, f"{path}, line {number}")
        is_frequent = number <= most_frequent
        if not is_frequent:
            if not beginnings:
                break
            # A model needs thousands of the file's millions of lines: the others are not parsed.
            if line[: line.find(b" ")] not in beginnings:
                continue
        fields = line.rstrip().split(b" ")
        word = _word(fields, dimension, f"{path}, line {number}")
        if word in line_of or not (is_frequent or word in wanted):
            continue
        try:
            values.extend(map(float, fields[-dimension:]))
        except (ValueError, OverflowError) as error:
            bad = next(field for field in fields[-dimension:] if not is_number(field))
            shown = excerpt(bad.decode("utf-8", "replace"), 40)
            raise InputError(f"{path}, line {number}: {shown!r} is not a number") from error
        line_of[word] = number
    else:
        _check_end(path, number, promised)

    table = np.frombuffer(values, dtype=np.float32).reshape(len(line_of), dimension)
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        raise InputError(f"{path}, line {[*line_of.values()][int(finite.argmin())]}: a number is not finite")
    names = (word.decode("utf-8", "surrogateescape") for word in line_of)
    return VectorFile({name: row for row, name in enumerate(names)}, table, str(path))


def _header(line: bytes) -> tuple[int, int] | None:
    """Return the numbers of words and dimensions in word2vec's header; None if the line is no header."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def _dimension(line: bytes, location: str) -> int:
    """Return the number of numbers at the end of the first line of words; its first field is always a word."""
    fields = line.rstrip().split(b" ")
    dimension = 0
    while dimension < len(fields) - 1 and is_number(fields[-1 - dimension]):
        dimension += 1
    if dimension == 0:
        raise InputError(f"{location}: expected a word and its numbers, separated by spaces")
    return dimension


def _word(fields: list[bytes], dimension: int, location: str) -> bytes:
    """Return the word before the numbers."""
    extra = len(fields) - 1 - dimension
    if extra < 0 or (extra > 0 and is_number(fields[extra])):
        problem = f"{len(fields) - 1} numbers where the lines before have {dimension}"
        raise InputError(f"{location}: {problem}; the file is damaged or truncated")
    return b" ".join(fields[: extra + 1])


def _check_end(path: str | Path, lines: int, promised: int | None) -> None:
    if lines == 0 or (promised is not None and lines == 1):
        raise InputError(f"{path}: the vector file is empty")
    if promised is not None and lines - 1 < promised:
        problem = f"ends at line {lines}, but its header announces {promised} words"
        raise InputError(f"{path}: {problem}; download it again")


def initial_table(
    vocabulary: Vocabulary, vectors: VectorFile, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Initialise an embedding [V, d] with the vectors, and with seeded noise of their size for words without one.

    The row of padding is zero. Also return bool [V], True where there is a vector.
    """
    deviation = vectors.values.std(dtype=np.float64) if vectors.values.size else 1.0
    random = np.random.default_rng(seed)
    table = random.standard_normal((len(vocabulary), vectors.values.shape[1]), dtype=np.float32)
    table *= np.float32(deviation)
    rows = np.fromiter(map(vectors.find, vocabulary.words), dtype=np.int64, count=len(vocabulary))
    has_vector = rows >= 0
    table[has_vector] = vectors.values[rows[has_vector]]
    table[vocabulary.pad_id] = 0
    # A file may contain the literal word <unk>, but its vector does not represent unknown words.
    has_vector[[vocabulary.pad_id, vocabulary.unk_id]] = False
    return table, has_vector
