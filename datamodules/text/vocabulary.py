"""The words and characters of a model, with their numbers, stored in its checkpoint as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from datamodules.core.sharing import cached_property
from datamodules.core.types import PlainDict
from datamodules.text.tokenization import Tokenizer, TransformersTokenizer
from datamodules.text.tokens import TokenStore, word_counts

PAD, UNK = "<pad>", "<unk>"
_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class Vocabulary:
    """Numbers for words, and for characters where the model reads them."""

    #: the word of each id.
    words: list[str]
    #: the character of each id, 0 = padding and 1 = unknown; None: the model reads none.
    characters: list[str] | None
    #: `Tokenizer.describe()`.
    tokenizer: dict[str, str | bool]
    pad_id: int = 0
    unk_id: int = 1
    #: word ids of the special tokens that a `transformers` model expects before and after each text.
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    @classmethod
    def from_stores(
        cls,
        stores: Sequence[TokenStore],
        tokenizer: Tokenizer,
        *,
        min_count: int = 1,
        extra_words: Iterable[str] = (),
        characters: bool,
        counts: Mapping[str, int] | None = None,
    ) -> Vocabulary:
        """Number the words that occur at least `min_count` times, and the extra words.

        They are sorted by falling frequency, then alphabetically. `characters` numbers the characters of all words.
        `counts` replaces the frequencies in the texts.
        """
        counts = word_counts(stores) if counts is None else counts
        frequent = _ordered({word: n for word, n in counts.items() if n >= min_count})
        # The literal words <pad> and <unk> in a text both mean an unknown word.
        words = dict.fromkeys([PAD, UNK, *frequent, *extra_words])
        alphabet = [PAD, UNK, *_ordered(_character_counts(counts))] if characters else None
        return cls(list(words), alphabet, tokenizer.describe())

    @classmethod
    def from_transformers(cls, tokenizer: TransformersTokenizer) -> Vocabulary:
        """Take over the vocabulary of a `transformers` tokenizer with its own ids."""
        special = tokenizer.pad_id, tokenizer.unk_id, *tokenizer.special_ids
        return cls(tokenizer.strings(), None, tokenizer.describe(), *special)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        ids = {word: id for id, word in enumerate(self.words)}
        if self.words[self.pad_id] == PAD:
            ids[PAD] = self.unk_id  # for the literal word: padding is never looked up
        return ids

    def lookup(self, lexicon: Sequence[str]) -> NDArray[np.int32]:
        """Return the id of each of n words, int32 [n]."""
        ids = map(self._ids.get, lexicon, repeat(self.unk_id))
        return np.fromiter(ids, dtype=np.int32, count=len(lexicon))

    def char_table(self, lexicon: Sequence[str], max_chars: int = 16) -> NDArray[np.int32]:
        """Return the character ids of the first characters of n words, filled up with 0, int32 [n, max_chars].

        [n, 0] where the model reads no characters.
        """
        if self.characters is None:
            return np.zeros((len(lexicon), 0), dtype=np.int32)
        kept = [word[:max_chars] for word in lexicon]
        lengths = np.fromiter(map(len, kept), dtype=np.int64, count=len(kept))
        table = np.zeros((len(kept), max_chars), dtype=np.int32)
        table[np.arange(max_chars) < lengths[:, None]] = self._char_ids[_code_points("".join(kept))]
        return table

    @cached_property
    def _char_ids(self) -> NDArray[np.int32]:
        """int32 [all code points of Unicode]: character ids."""
        assert self.characters is not None
        ids = np.ones(_CODE_POINTS, dtype=np.int32)
        ids[_code_points("".join(self.characters[2:]))] = np.arange(2, len(self.characters))
        return ids

    def to_dict(self) -> PlainDict:
        """Return plain values, for a checkpoint that is loaded with `weights_only=True`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "prefix": list(self.prefix), "suffix": list(self.suffix)}

    @classmethod
    def from_dict(cls, values: PlainDict) -> Vocabulary:
        """Return the vocabulary that `to_dict` described; raise a `ValueError` if that is none."""
        vocabulary = cls(**{**values, "prefix": tuple(values["prefix"]), "suffix": tuple(values["suffix"])})
        vocabulary._check()
        return vocabulary

    def _check(self) -> None:
        # Compiled code reads and writes at these ids.
        ids = self.pad_id, self.unk_id, *self.prefix, *self.suffix
        if not all(type(id) is int and 0 <= id < len(self.words) for id in ids):
            raise ValueError(f"a special token is none of the {len(self.words)} words")
        characters = [] if self.characters is None else self.characters
        if {type(word) for word in (*self.words, *characters)} - {str}:
            raise ValueError("a word or a character is no text")
        if any(len(character) != 1 for character in characters[2:]):
            raise ValueError("a character is not one character")

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change whenever the number of a word or character could change."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def _ordered(counts: Mapping[str, int]) -> list[str]:
    """Sort by falling frequency, then by the word, so that the order of the texts does not matter."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def _character_counts(words: Mapping[str, int]) -> dict[str, int]:
    """Return the number of occurrences of each character, given those of the words."""
    if not words:
        return {}
    per_character = np.repeat(list(words.values()), list(map(len, words)))
    counts = np.bincount(_code_points("".join(words)), weights=per_character)
    return {chr(point): int(counts[point]) for point in np.flatnonzero(counts)}


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
