"""Cutting texts into tokens: words by Unicode's rules, white space, characters, or any `transformers` tokenizer.

A tokenizer here is a specification: a name and a switch, small enough to pickle, compare and write into a
fingerprint. Its one job is `encode`: texts in, numbers of a growing `Lexicon` out. Most words of a corpus
are words seen before, so the work done for each is one look-up, whatever the rules of cutting are.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import regex

from datamodules.core.errors import InputError
from datamodules.text.hub import check_reachable


class Lexicon(dict[str, int]):
    """Numbers words in the order in which they are first asked for: `lexicon[word]` always has an answer."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


@dataclass(frozen=True)
class Tokenizer(ABC):
    """How texts become tokens.

    Attributes:
        name: what `make_tokenizer` was asked for.
        lowercase: fold the case of a text before it is cut.
    """

    name: str
    lowercase: bool

    @abstractmethod
    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """The numbers of each text's tokens in `lexicon`, which takes up the new ones."""

    def describe(self) -> dict[str, str | bool]:
        """Plain values that change whenever the tokens could: for fingerprints."""
        return {"name": self.name, "lowercase": self.lowercase}


#: Names of the tokenizers whose tokens are words.
WORD_TOKENIZERS = ("words", "whitespace")
#: The tokenizer whose tokens are single characters.
CHARACTERS = "characters"
#: Names of the tokenizers that are made here; all others are of `transformers`.
OWN_TOKENIZERS = (*WORD_TOKENIZERS, CHARACTERS)


def make_tokenizer(name: str, lowercase: bool) -> Tokenizer:
    """Turn the user's option into a tokenizer.

    Args:
        name: `words` (UAX #29 words, and each other character that isn't a space as a token of its own),
            `whitespace`, `characters`, or a `transformers` tokenizer: a name on the Hub or a local folder.
        lowercase: fold the case of a text before it is cut. A `transformers` tokenizer that folds by itself
            does so either way.

    Raises:
        InputError: there is no such tokenizer.
    """
    if name == "words":
        return WordTokenizer(name, lowercase)
    if name == "whitespace":
        return WhitespaceTokenizer(name, lowercase)
    if name == CHARACTERS:
        return CharacterTokenizer(name, lowercase)
    _load(name)  # A wrong name is better known now than after the corpus is read.
    return TransformersTokenizer(name, lowercase)


class WhitespaceTokenizer(Tokenizer):
    """What stands between white space (`str.split`): for texts that were tokenised before."""

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """See `Tokenizer.encode`."""
        for text in texts:
            yield list(map(lexicon.__getitem__, (text.lower() if self.lowercase else text).split()))


class CharacterTokenizer(Tokenizer):
    """Every code point of a text, spaces included: for models that read texts letter by letter."""

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """See `Tokenizer.encode`."""
        for text in texts:
            yield list(map(lexicon.__getitem__, text.lower() if self.lowercase else text))


# Unicode Standard Annex #29, "Word Boundary Rules", as one expression: it matches one segment. The names of
# the rules stand at the right. `_X` is what rule WB4 lets follow any character. Possessive throughout
# (`++`, `*+`), so a megabyte without a space takes linear time.
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


class WordTokenizer(Tokenizer):
    """The segments of Unicode Standard Annex #29, white space left out.

    Words and numbers stay whole (`can't`, `3.14`); punctuation, symbols, emoji, Han and Hiragana characters
    are tokens of their own.
    """

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """See `Tokenizer.encode`."""
        # No segment that we keep crosses white space, so each stretch between spaces is cut alone.
        stretches = _Stretches(lexicon)
        for text in texts:
            pieces = (text.lower() if self.lowercase else text).split()
            yield list(chain.from_iterable(map(stretches.__getitem__, pieces)))

    def describe(self) -> dict[str, str | bool]:
        """Plain values that change whenever the tokens could: for fingerprints."""
        expression = hashlib.sha256(_SEGMENT.pattern.encode()).hexdigest()[:16]
        return {**super().describe(), "expression": expression}


#: Stretches that are kept in memory, some 200 MB of them.
_REMEMBERED = 1 << 20


class _Stretches(dict[str, list[int]]):
    """Remembers how a stretch without spaces is cut, within bounds: texts in Chinese rarely repeat one."""

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__()
        self.lexicon = lexicon

    def __missing__(self, stretch: str) -> list[int]:
        # Letters and digits of ASCII are one segment: most words need no look at the rules.
        if stretch.isascii() and stretch.isalnum():
            numbers = [self.lexicon[stretch]]
        else:
            numbers = [self.lexicon[token] for token in _SEGMENT.findall(stretch)]
        if len(stretch) <= 32:
            if len(self) == _REMEMBERED:
                self.clear()
            self[stretch] = numbers
        return numbers


class TransformersTokenizer(Tokenizer):
    """A `transformers` tokenizer, used through the strings of its vocabulary.

    Attributes:
        prefix: ids of the special tokens that its model wants before a text, such as [CLS].
        suffix: ids of those after it, such as [SEP].
        pad_id: id that fills up a batch.
        unk_id: id of a token that the vocabulary doesn't have.
    """

    @property
    def prefix(self) -> tuple[int, ...]:  # noqa: D102
        return _special_ids(self.name)[0]

    @property
    def suffix(self) -> tuple[int, ...]:  # noqa: D102
        return _special_ids(self.name)[1]

    @property
    def pad_id(self) -> int:  # noqa: D102
        # Some models, GPT-2 for one, have no padding; what stands under a mask is then all one.
        ids = (_load(self.name).pad_token_id, _load(self.name).eos_token_id, 0)
        return next(id for id in ids if id is not None)

    @property
    def unk_id(self) -> int:  # noqa: D102
        unk = _load(self.name).unk_token_id
        return self.pad_id if unk is None else int(unk)

    def strings(self) -> list[str]:
        """The vocabulary: the string of each id, "" where an id is not in use."""
        ids: dict[str, int] = _load(self.name).get_vocab()
        strings = [""] * (max(ids.values()) + 1)
        for token, id in ids.items():
            strings[id] = token
        return strings

    def encode(self, texts: Iterable[str], lexicon: Lexicon) -> Iterator[list[int]]:
        """See `Tokenizer.encode`. Special tokens are not added: a batch gets them when it is put together."""
        tokenizer = _load(self.name)
        numbers = _Numbers(self.strings(), lexicon)
        left = iter(texts)
        while block := list(islice(left, 1024)):
            # The library takes no lone surrogates.
            block = [text.encode("utf-8", "replace").decode() for text in block]
            if self.lowercase:
                block = [text.lower() for text in block]
            if tokenizer.is_fast:
                encodings = tokenizer.backend_tokenizer.encode_batch_fast(block, add_special_tokens=False)
                rows = [encoding.ids for encoding in encodings]
            else:
                rows = tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"]
            for ids in rows:
                yield list(map(numbers.__getitem__, ids))

    def describe(self) -> dict[str, str | bool]:
        """Plain values that change whenever the tokens could: for fingerprints."""
        return {**super().describe(), "contents": _contents(self.name)}


class _Numbers(dict[int, int]):
    """Lexicon numbers of a vocabulary's ids."""

    def __init__(self, strings: list[str], lexicon: Lexicon) -> None:
        super().__init__()
        self.strings, self.lexicon = strings, lexicon

    def __missing__(self, id: int) -> int:
        self[id] = number = self.lexicon[self.strings[id]]
        return number


@lru_cache(maxsize=4)
def _load(name: str) -> Any:
    """The tokenizer object; kept here, and not in the specification, so that the latter stays picklable."""
    from transformers import AutoTokenizer

    # The library warns in every process that is forked after its threads ran, unless this is set. Only the
    # process that builds a store tokenises, so that there is nothing to warn of.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    check_reachable(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        if len(tokenizer) == 0:
            raise ValueError("its vocabulary is empty")
    except Exception as error:  # Rust code, the network and remote configurations all fail in their own ways.
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"tokenizer {name!r}: use words, whitespace, characters, or the name or folder of a transformers tokenizer "
            f"(which said: {reason})"
        ) from error
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    return tokenizer


@lru_cache(maxsize=4)
def _special_ids(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find what stands before and after a text by looking at one."""
    tokenizer = _load(name)
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
    return tuple(full[:start]), tuple(full[start + len(bare) :])


@lru_cache(maxsize=4)
def _contents(name: str) -> str:
    tokenizer = _load(name)
    contents = (
        json.loads(tokenizer.backend_tokenizer.to_str())
        if tokenizer.is_fast
        else [type(tokenizer).__name__, tokenizer.get_vocab()]
    )
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]
