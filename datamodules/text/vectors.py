"""Pre-trained word vectors: GloVe and word2vec text files, and how much of the data they cover.

Such a file has millions of lines of which a model needs thousands. Each line is cut at its first space; only
where a wanted word stands before it are the numbers looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.core.files import DamagedFile, binary_lines
from datamodules.text.tokens import TokenStore, word_counts
from datamodules.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Coverage:
    """How much of a text a vector file covers. A type is a distinct word, a token an occurrence of one.

    Attributes:
        source: the vector file.
        types: distinct words of the texts.
        types_found: those with a vector.
        types_lowered: those of the latter that have it only in lower case.
        tokens: as `types`, in occurrences.
        tokens_found: as `types_found`, in occurrences.
        tokens_lowered: as `types_lowered`, in occurrences.
    """

    source: str
    types: int
    types_found: int
    types_lowered: int
    tokens: int
    tokens_found: int
    tokens_lowered: int

    def __str__(self) -> str:
        def share(found: int, total: int, lowered: int) -> str:
            return f"{found:,} of {total:,} ({found / max(total, 1):.1%}, {lowered:,} of them lower-cased)"

        words = share(self.types_found, self.types, self.types_lowered)
        tokens = share(self.tokens_found, self.tokens, self.tokens_lowered)
        return f"{self.source}: vectors for {words} words and {tokens} tokens"


@dataclass(frozen=True)
class WordVectors:
    """The kept lines of a vector file.

    Attributes:
        rows: row of `values` of each kept word, in the order of the file.
        values: float32 [kept words, d].
        source: the file, for messages.
    """

    rows: dict[str, int]
    values: NDArray[np.float32]
    source: str

    def find(self, word: str) -> int:
        """Row of a word, or of its lower-cased form if only that is there; -1 if neither is."""
        row = self.rows.get(word)
        return self.rows.get(word.lower(), -1) if row is None else row

    @property
    def words(self) -> list[str]:
        """The kept words in the order of the file."""
        return list(self.rows)

    def coverage(self, stores: Sequence[TokenStore]) -> Coverage:
        """How much of the texts has a vector."""
        counts = word_counts(stores)
        found = {word: count for word, count in counts.items() if self.find(word) >= 0}
        lowered = [count for word, count in found.items() if word not in self.rows]
        return Coverage(
            self.source,
            types=len(counts),
            types_found=len(found),
            types_lowered=len(lowered),
            tokens=counts.total(),
            tokens_found=sum(found.values()),
            tokens_lowered=sum(lowered),
        )


def read_vectors(
    path: str | Path, words: Collection[str] | None = None, most_frequent: int | None = None
) -> WordVectors:
    """Read a GloVe or word2vec text file; with neither option, all of it.

    The last d fields of a line are the vector and what stands before them, spaces included, is the word. Of
    lines with the same word the first counts. A first line of two whole numbers is word2vec's header.

    Args:
        path: a file, plain or as .gz, .xz or .zip. Of a .zip with several files name one, as a folder's:
            `glove.6B.zip/glove.6B.100d.txt`.
        words: keep these words, or their lower-cased forms where the file has only those.
        most_frequent: keep the first so many words too (both kinds of file begin with the frequent ones).

    Raises:
        InputError: missing, empty or truncated file; a line with too few or too many numbers, or with
            something else in place of a number. Names file and line.
    """
    if most_frequent is not None and most_frequent < 0:
        raise InputError(f"most_frequent={most_frequent}: must be at least 0")
    everything = words is None and most_frequent is None
    first_lines = most_frequent or 0
    wanted = {form.encode("utf-8", "surrogatepass") for word in words or () for form in (word, word.lower())}
    beginnings = {word.partition(b" ")[0] for word in wanted}

    rows: dict[bytes, int] = {}
    line_of_row: list[int] = []
    values = array("f")
    number = dimension = 0
    promised = None
    with _named_errors(path):
        for number, line in enumerate(binary_lines(Path(path)), start=1):
            if number == 1 and (header := _header(line)):
                promised, dimension = header
                first_lines += bool(first_lines)
                continue
            if dimension == 0:
                dimension = _dimension(path, number, line)
            read_all = everything or number <= first_lines
            if not read_all:
                if not beginnings:
                    break
                if line[: line.find(b" ")] not in beginnings:
                    continue
            fields = line.rstrip().split(b" ")
            word = _word(path, number, fields, dimension)
            if word in rows or not (read_all or word in wanted):
                continue
            try:
                values.extend(map(float, fields[-dimension:]))
            except (ValueError, OverflowError) as error:
                bad = next(field for field in fields[-dimension:] if not _is_number(field))
                raise InputError(f"{path}:{number}: {_shown(bad)} is not a number") from error
            rows[word] = len(rows)
            line_of_row.append(number)
        else:
            _check_end(path, number, promised)

    table = np.frombuffer(values, dtype=np.float32).reshape(len(rows), dimension)
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        raise InputError(f"{path}:{line_of_row[int(finite.argmin())]}: a number is not finite")
    names = (word.decode("utf-8", "surrogateescape") for word in rows)
    return WordVectors({name: row for row, name in enumerate(names)}, table, str(path))


def initial_table(
    vocabulary: Vocabulary, vectors: WordVectors, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """What an embedding starts from: the vectors, and noise of their size where there is none.

    Args:
        vocabulary: V words.
        vectors: d numbers a word.
        seed: of the noise.

    Returns:
        float32 [V, d], in which the padding's row is zero; and bool [V], True where there is a vector.
    """
    deviation = vectors.values.std(dtype=np.float64) if vectors.values.size else 1.0
    random = np.random.default_rng(seed)
    table = random.standard_normal((len(vocabulary), vectors.values.shape[1]), dtype=np.float32)
    table *= np.float32(deviation)
    rows = np.fromiter(map(vectors.find, vocabulary.words), dtype=np.int64, count=len(vocabulary))
    found = rows >= 0
    table[found] = vectors.values[rows[found]]
    table[vocabulary.pad_id] = 0
    # A file may have a vector by the unknown word's name; what that stands for is drawn all the same.
    found[[vocabulary.pad_id, vocabulary.unk_id]] = False
    return table, found


@contextmanager
def _named_errors(path: str | Path) -> Iterator[None]:
    """Name the file in whatever goes wrong while it is read."""
    try:
        yield
    except DamagedFile as error:
        raise InputError(f"{path}: damaged or truncated archive ({error}); download it again") from error
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such vector file") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error


def _header(line: bytes) -> tuple[int, int] | None:
    """The numbers of words and of dimensions that word2vec announces; None if the line is no header."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def _dimension(path: str | Path, number: int, line: bytes) -> int:
    """How many numbers end the first line of words, its first field being a word whatever it looks like."""
    fields = line.rstrip().split(b" ")
    dimension = 0
    while dimension < len(fields) - 1 and _is_number(fields[-1 - dimension]):
        dimension += 1
    if dimension == 0:
        raise InputError(f"{path}:{number}: expected a word and its numbers, separated by spaces")
    return dimension


def _word(path: str | Path, number: int, fields: list[bytes], dimension: int) -> bytes:
    """What stands before the numbers."""
    extra = len(fields) - 1 - dimension
    if extra < 0 or (extra > 0 and _is_number(fields[extra])):
        raise InputError(
            f"{path}:{number}: {len(fields) - 1} numbers where the lines before have {dimension};"
            " the file is damaged or truncated"
        )
    return b" ".join(fields[: extra + 1])


def _check_end(path: str | Path, lines: int, promised: int | None) -> None:
    if lines == 0 or (promised is not None and lines == 1):
        raise InputError(f"{path}: the vector file is empty")
    if promised is not None and lines - 1 < promised:
        raise InputError(
            f"{path}: ends at line {lines}, but its header announces {promised} words; download it again"
        )


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _shown(field: bytes) -> str:
    return repr(field[:40].decode("utf-8", "replace"))
