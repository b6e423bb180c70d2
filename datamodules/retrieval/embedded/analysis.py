"""Terms of texts, as Lucene's analyzers `standard`, `english` and `cjk` make them.

No token spans white space, so each piece between white space is analysed once and looked up afterwards.
"""

from __future__ import annotations

import itertools
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import regex
from numpy.typing import NDArray

from datamodules.core.ragged import consecutive, offsets_of
from datamodules.corpora.rows import whole_characters
from datamodules.retrieval.base import AnalyzerName

#: Lucene's scanner reads this many UTF-16 units at once and splits longer tokens.
MAX_TOKEN_UNITS = 255
# Texts are scanned in windows of this many characters, enough for the longest token and its context.
_WINDOW = 512

# Classes of characters, one letter each, as Lucene has them, whatever the version of Unicode in Python's packages:
# an index and its queries must agree for years. `tests.elasticsearch.character_classes` writes the file from a server.
_CLASSES = np.full(0x110000, ord("-"), np.uint8)
for _line in Path(__file__).with_name("character_classes.txt").read_text(encoding="ascii").splitlines():
    _class, *_ranges = _line.split()
    for _range in _ranges:
        _first, _, _last = _range.partition("-")
        _CLASSES[int(_first, 16) : int(_last or _first, 16) + 1] = ord(_class)

_ASCII_CLASSES = _CLASSES[:256].tobytes()

# Word boundaries of Unicode's annex 29, as in Lucene's StandardTokenizer, over classes in place of characters.
_MARK = "[xszktTM]*+"
_LETTER = f"[LHWO]{_MARK}"  # of Hebrew: H, of Hangul: W, emoji as well: O
_HEBREW = f"H{_MARK}"
_DIGIT = f"[ND]{_MARK}"
_KATAKANA = f"K{_MARK}"
_JOINER = f"J{_MARK}"
_IN_WORDS = f"[:.']{_MARK}"
_IN_NUMBERS = f"[,.']{_MARK}"

# Letters and digits run together; a full stop or an apostrophe stays between two letters or two digits.
# Katakana joins them over an underscore only (WB13a, WB13b).
_RUN = (
    # A letter next to a double quotation mark joins nothing else.
    rf"(?:(?:{_HEBREW}(?:\"{_MARK}{_HEBREW}|'{_MARK})"
    rf"|{_LETTER}(?:{_IN_WORDS}{_LETTER})*+"
    rf"|{_DIGIT}(?:{_IN_NUMBERS}(?={_DIGIT}))?)++|(?:{_KATAKANA})++)"
)
_WORD = rf"(?:{_JOINER})*+{_RUN}(?:(?:{_JOINER})++{_RUN})*+(?:{_JOINER})*+"

# Emoji are tokens too: single, with a skin tone (M), joined to sequences (by z), key caps (k) and flags (two of R).
_TAIL = "[xszkM]*"
_ONE_EMOJI = f"(?:z*[EO]{_TAIL}T?|M{_TAIL})"
# The longest token wins: a letter that is an emoji as well (O) is no word where an emoji (E) is joined to it.
_JOINED = f"O{_TAIL}T?z*(?:(?<=z)O{_TAIL}T?z*)*(?<=z)E"
_EMOJI = rf"{_ONE_EMOJI}(?:(?:(?<=z)|z){_ONE_EMOJI})*+|[D#]{_TAIL}T?k{_TAIL}|R{_MARK}R{_MARK}"

# One expression, first alternative first. Words of South-East Asian scripts (S, their marks s) are not split, which
# would need a dictionary; each Chinese character (C) and each Hiragana (G) is a token.
_TOKEN = regex.compile(
    rf"(?P<word>(?!{_JOINED}){_WORD})|(?P<emoji>{_EMOJI})|(?P<asian>(?:[Ss]{_MARK})++)|(?P<cjk>[CG]{_MARK})"
    # Joiners without a word are skipped in one step.
    r"|(?P<joiners>J++)"
)
_ONE_SCRIPT = regex.compile(f"(?:{_KATAKANA})++|(?:W{_MARK})++")


def classes_of(text: str) -> str:
    """The class of each character of a text, a letter each."""
    if text.isascii():
        return text.encode("ascii").translate(_ASCII_CLASSES).decode("ascii")
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _CLASSES[characters].tobytes().decode("ascii")


def tokens(text: str) -> list[tuple[int, str, bool]]:
    """Split as Lucene's StandardTokenizer: start, token, True if all of it is Chinese, Japanese or Korean."""
    results = []
    classes = classes_of(text)
    position = 0
    while position < len(text):
        # Windows keep the time linear in the length of a text that is a single word.
        window = min(position + _WINDOW, len(text))
        match = _TOKEN.search(classes, position, window)
        if match is None:
            # A token may begin in this window and match only in the next one.
            position = window if window == len(text) else window - MAX_TOKEN_UNITS
            continue
        if match.end() == window < len(text) and match.start() > position:
            position = match.start()
            continue
        start, end = match.span()
        if match.lastgroup == "joiners":
            position = end
            continue
        if end - start > MAX_TOKEN_UNITS // 2:  # it may have too many UTF-16 units
            match = _TOKEN.match(classes, start, _end_of_units(text, start, end))
            if match is None:
                position = start + 1
                continue
            end = match.end()
        token = text[start:end]
        is_cjk = match.lastgroup == "cjk" or (
            match.lastgroup == "word" and _ONE_SCRIPT.fullmatch(match.group()) is not None
        )
        results.append((start, token, is_cjk))
        position = end
    return results


def _end_of_units(text: str, start: int, end: int) -> int:
    """Return the end of the longest prefix of text[start:end] with at most MAX_TOKEN_UNITS UTF-16 units."""
    units = 0
    for position in range(start, end):
        units += 2 if text[position] > "\uffff" else 1
        if units > MAX_TOKEN_UNITS:
            return position
    return end


#: Lucene's English stop words.
ENGLISH_STOP_WORDS = frozenset(
    # A string, because a list of so many words is hard to read.
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "  # noqa: SIM905
    "they this to was will with".split()
)
#: The stop words of Lucene's CJKAnalyzer: English ones, and tokens of "'s", "'t" and "www.".
CJK_STOP_WORDS = (ENGLISH_STOP_WORDS - {"an"}) | {"s", "t", "www"}

_POSSESSIVES = ("'s", "'S", "’s", "’S", "＇s", "＇S")
_WIDE = regex.compile(r"[\uFF01-\uFF5E]+|[\u30A6-\u30FD]?[\uFF65-\uFF9F]+")
_WHITE_SPACE = regex.compile(r"[ \t\n\r]+")
_MEMO_SIZE = 1 << 18
_LONGEST_MEMO = 64


def terms_of(analyzer: AnalyzerName, text: str) -> list[str]:
    """Return the terms of a text in their order, repeated ones included, exactly as Lucene's analyzer."""
    results: list[str] = []
    for piece in pieces(text):
        results.extend(_memo(analyzer, piece) if len(piece) <= _LONGEST_MEMO else analyse(analyzer, piece))
    return results


def analyse(analyzer: AnalyzerName, piece: str) -> tuple[str, ...]:
    """Return the terms of a piece of text without white space."""
    if piece.isascii() and piece.isalnum() and len(piece) <= MAX_TOKEN_UNITS:
        split = [(0, piece, False)]
    else:
        split = tokens(piece)
    if analyzer == "cjk":
        return tuple(term for term in _bigrams(split) if term not in CJK_STOP_WORDS)
    if analyzer == "english":
        return tuple(_english(token for _, token, _ in split))
    return tuple(_lower(token) for _, token, _ in split)


_memo = lru_cache(_MEMO_SIZE)(analyse)


@cache
def _stem() -> Callable[..., str]:
    from nltk.stem.porter import PorterStemmer  # imports 100 MB of other packages

    # Lucene's PorterStemFilter is Porter's own program, which differs from his paper in three rules.
    return PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS).stem


def _english(split: Iterable[str]) -> Iterable[str]:
    for token in split:
        term = _lower(token[:-2] if token.endswith(_POSSESSIVES) else token)
        if term not in ENGLISH_STOP_WORDS:
            # Lucene stems UTF-16: a character beyond the basic plane counts as two.
            if not term.isascii():
                term = "".join(map(chr, np.frombuffer(term.encode("utf-16-le"), "<u2").tolist()))
            yield whole_characters(_stem()(term, to_lowercase=False))


def pieces(text: str) -> list[str]:
    """Split a text at white space, with whole characters, as a server receives it."""
    text = whole_characters(text)
    # The narrow no-break space joins words like an underscore, but str.split splits at it.
    return list(_WHITE_SPACE.split(text)) if "\u202f" in text else text.split()


def _lower(token: str) -> str:
    """Return lower case by character, as in Java; Python's depends on neighbors for the Greek sigma."""
    if token.isascii():
        return token.lower()
    return token.replace("Σ", "σ").replace("İ", "i").lower()


def _bigrams(split: Iterable[tuple[int, str, bool]]) -> Iterable[str]:
    """Yield adjacent Chinese, Japanese and Korean characters in pairs, and a single one as it is."""
    run, run_end = "", -1
    for start, token, is_cjk in split:
        if run and not (is_cjk and start == run_end):
            yield from _pairs(run)
            run = ""
        term = _lower(_WIDE.sub(lambda match: unicodedata.normalize("NFKC", match.group()), token))
        if is_cjk:
            run += term
            run_end = start + len(token)
        else:
            yield term
    if run:
        yield from _pairs(run)


def _pairs(run: str) -> Iterable[str]:
    return (a + b for a, b in itertools.pairwise(run)) if len(run) > 1 else (run,)


class _Numbers(dict[str, int]):
    """Assigns the next number to every new key, and lists the new keys in `new`."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class TermIds:
    """Encodes texts as term ids and keeps the dictionary `ids`, term -> id: a new term gets the next id."""

    def __init__(self, analyzer: AnalyzerName) -> None:
        self.analyzer: AnalyzerName = analyzer
        self.ids = _Numbers()
        self._forget_pieces()

    def _forget_pieces(self) -> None:
        self._pieces = _Numbers()
        self._piece_chars = 0
        # The term ids of piece p are _piece_ids[_piece_first[p] : _piece_first[p + 1]].
        self._piece_first = array("q", [0])
        self._piece_ids = array("i")

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the term ids of n texts (some thousands), int32, and the start of each text, int64 [n + 1]."""
        if len(self._pieces) > _MEMO_SIZE or self._piece_chars > 32 * _MEMO_SIZE:
            self._forget_pieces()
        cut = [pieces(text) for text in texts]
        bounds = offsets_of(np.fromiter(map(len, cut), np.int64, len(cut)))
        flat = itertools.chain.from_iterable(cut)
        numbers = np.fromiter(map(self._pieces.__getitem__, flat), np.int64, int(bounds[-1]))
        for piece in self._pieces.new:
            self._piece_chars += len(piece)
            self._piece_ids.extend(map(self.ids.__getitem__, analyse(self.analyzer, piece)))
            self._piece_first.append(len(self._piece_ids))
        self._pieces.new.clear()

        first = np.frombuffer(self._piece_first, np.int64)
        piece_ids = np.frombuffer(self._piece_ids, np.int32)
        positions = consecutive(first[numbers], np.diff(first)[numbers])
        return piece_ids[positions.values], positions.offsets[bounds]
