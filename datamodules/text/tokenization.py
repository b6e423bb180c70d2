"""Splitting texts into tokens: words by Unicode's rules, white space, characters, or any `transformers` tokenizer."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import regex

from datamodules.core.errors import InputError, reason
from datamodules.text.sentence_modules import SentenceModules, check_reachable, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Lexicon(dict[str, int]):
    """Numbers words in the order of their first look-up; `lexicon[word]` never fails."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


@dataclass(frozen=True)
class Tokenizer(ABC):
    """A way of splitting texts, small enough to pickle and to write into a fingerprint; see `make_tokenizer`."""

    name: str
    lowercase: bool

    @abstractmethod
    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """Yield the tokens of each text as numbers of `lexicon`, to which new tokens are added."""

    def describe(self) -> dict[str, str | bool]:
        """Return plain values that change whenever the tokens could change, for fingerprints."""
        return {"name": self.name, "lowercase": self.lowercase}

    def _folded(self, texts: Iterable[str]) -> Iterable[str]:
        return map(str.lower, texts) if self.lowercase else texts


#: The tokenizers whose tokens are words.
WordTokenizer: TypeAlias = Literal["words", "whitespace"]
WORD_TOKENIZERS = get_args(WordTokenizer)
CHARACTERS = "characters"
#: The tokenizers of this module; all others belong to `transformers`.
OWN_TOKENIZERS = (*WORD_TOKENIZERS, CHARACTERS)


def make_tokenizer(name: str, lowercase: bool | None) -> Tokenizer:
    """Make the tokenizer that the user's options name, or raise an `InputError`; see `DataOptions`."""
    if name in OWN_TOKENIZERS:
        return (_WordTokenizer if name == "words" else _SplitTokenizer)(name, lowercase is not False)
    _load(name)  # to refuse a wrong name now, before the corpus is read
    return TransformersTokenizer(
        name, SentenceModules.read(name).lowercases if lowercase is None else lowercase
    )


class _SplitTokenizer(Tokenizer):
    """Splits texts that are tokenized already at white space, or any texts into code points, spaces included."""

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        split: Callable[[str], Iterable[str]] = iter if self.name == CHARACTERS else str.split
        return (list(map(lexicon.__getitem__, split(text))) for text in self._folded(texts))


# Unicode Standard Annex #29, "Word Boundary Rules": one segment. The comments at the right name the rules. `_X` matches
# the characters that rule WB4 ignores. Possessive quantifiers (`++`, `*+`) keep the time linear.
_X = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
_LETTER = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{_X}"
_HEBREW = rf"\p{{WB=Hebrew_Letter}}{_X}"
_DIGIT = rf"\p{{WB=Numeric}}{_X}"
_JOINER = rf"\p{{WB=ExtendNumLet}}{_X}"
_IN_WORD = rf"[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}']{_X}"
_IN_NUMBER = rf"[\p{{WB=MidNum}}\p{{WB=MidNumLet}}']{_X}"
_LETTERS_AND_DIGITS = rf"""(?:
      {_HEBREW} "{_X} (?={_HEBREW})                    # WB7b, WB7c
    | {_HEBREW} '{_X} (?!{_LETTER})                    # WB7a
    | {_LETTER} (?: {_IN_WORD} (?={_LETTER}) )?+       # WB5, WB6, WB7, WB9
    | {_DIGIT} (?: {_IN_NUMBER} (?={_DIGIT}) )?+       # WB8, WB10, WB11, WB12
)++"""
_CORE = rf"(?: {_LETTERS_AND_DIGITS} | (?: \p{{WB=Katakana}}{_X} )++ )"  # WB13
_SEGMENT = regex.compile(
    rf"""
      (?:{_JOINER})*+ {_CORE} (?: (?:{_JOINER})++ {_CORE} )*+ (?:{_JOINER})*+           # WB13a, WB13b
    | (?:{_JOINER})++
    | \p{{WB=Regional_Indicator}}{_X} \p{{WB=Regional_Indicator}}{_X}                   # WB15: a flag
    | . {_X} (?: (?<=\N{{ZERO WIDTH JOINER}}) \p{{Extended_Pictographic}} {_X} )*+      # WB3c, WB999
    """,
    regex.VERBOSE | regex.DOTALL | regex.VERSION1,
)


class _WordTokenizer(Tokenizer):
    """Splits texts into the segments of Unicode Standard Annex #29, without white space.

    Words and numbers stay whole (`can't`, `3.14`); punctuation, emoji, Han and Hiragana characters are single tokens.
    """

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        # No token contains white space, so each piece between spaces is split alone.
        pieces = _Pieces(lexicon)
        for text in self._folded(texts):
            yield list(chain.from_iterable(map(pieces.__getitem__, text.split())))

    def describe(self) -> dict[str, str | bool]:
        expression = hashlib.sha256(_SEGMENT.pattern.encode()).hexdigest()[:16]
        return {**super().describe(), "expression": expression}


#: The largest number of cached pieces, about 200 MB.
_MAX_PIECES = 1 << 20


class _Pieces(dict[str, list[int]]):
    """The tokens of pieces without spaces, a cache of limited size: texts in Chinese rarely repeat a piece."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon

    def __missing__(self, piece: str) -> list[int]:
        # ASCII letters and digits are always one segment, so most words need no regular expression.
        if piece.isascii() and piece.isalnum():
            numbers = [self.lexicon[piece]]
        else:
            numbers = [self.lexicon[token] for token in _SEGMENT.findall(piece)]
        if len(piece) <= 32:
            if len(self) == _MAX_PIECES:
                self.clear()
            self[piece] = numbers
        return numbers


class TransformersTokenizer(Tokenizer):
    """Splits texts by a `transformers` tokenizer; the tokens are the strings of its vocabulary."""

    @property
    def special_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the special tokens that its model expects before a text, such as [CLS], and after it."""
        if SentenceModules.read(self.name).is_static:
            return (), ()
        tokenizer = _load(self.name)
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a")["input_ids"]
        start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return tuple(full[:start]), tuple(full[start + len(bare) :])

    @property
    def pad_id(self) -> int:
        """The id that fills up a batch. For models without one, such as GPT-2, any id does under the mask."""
        ids = (_load(self.name).pad_token_id, _load(self.name).eos_token_id, 0)
        return next(id for id in ids if id is not None)

    @property
    def unk_id(self) -> int:
        """The id of a token that the vocabulary lacks."""
        unk = _load(self.name).unk_token_id
        return self.pad_id if unk is None else int(unk)

    def strings(self) -> list[str]:
        """Return the string of each id of the vocabulary, "" where an id is not in use."""
        ids: dict[str, int] = _load(self.name).get_vocab()
        strings = [""] * (max(ids.values()) + 1)
        for token, id in ids.items():
            strings[id] = token
        return strings

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """See `Tokenizer.encode`. Special tokens are added to a batch, not here."""
        tokenizer = _load(self.name)
        strings = self.strings()
        # The library refuses lone surrogates.
        whole = self._folded(text.encode("utf-8", "replace").decode() for text in texts)
        while block := list(islice(whole, 1024)):
            if tokenizer.is_fast:
                try:
                    encodings = tokenizer.backend_tokenizer.encode_batch_fast(block, add_special_tokens=False)
                except BaseException as error:
                    # Some expressions never end on some texts: the library gives up after a number of steps.
                    if type(error).__name__ != "PanicException":
                        raise
                    raise InputError(
                        f"{self.name}: use another tokenizer, it fails: {reason(error)}"
                    ) from error
                rows = [encoding.ids for encoding in encodings]
            else:
                rows = tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"]
            for ids in rows:
                yield list(map(lexicon.__getitem__, map(strings.__getitem__, ids)))

    def describe(self) -> dict[str, str | bool]:
        """See `Tokenizer.describe`; the values depend on the tokenizer's files, not on its name or folder."""
        return {"name": "transformers", "lowercase": self.lowercase, "contents": _contents(self.name)}


@lru_cache(maxsize=4)
def _load(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer object, which is no part of the specification, because that must be picklable."""
    check_reachable(name)
    try:
        tokenizer = load_tokenizer(name, SentenceModules.read(name))
        # Without its files, the library makes one that knows special tokens only.
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            raise ValueError("its vocabulary is empty; are the tokenizer's files missing?")
    except InputError:  # of the published modules
        raise
    except Exception as error:  # Rust code, the network and remote configurations raise different classes
        advice = "use words, whitespace, characters, or the name or folder of a transformers tokenizer"
        raise InputError(f"tokenizer {name!r}: {advice} (its error: {reason(error)})") from error
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    return tokenizer


@lru_cache(maxsize=4)
def _contents(name: str) -> str:
    tokenizer = _load(name)
    contents: object = [type(tokenizer).__name__, tokenizer.get_vocab()]
    if tokenizer.is_fast:
        contents = json.loads(tokenizer.backend_tokenizer.to_str())
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]
