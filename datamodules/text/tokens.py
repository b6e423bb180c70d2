"""Tokenised texts on disk, as numbers of a lexicon that belongs to the data: one store serves any vocabulary."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import check_numbers, check_starts, map_array
from datamodules.core.compiled import njit
from datamodules.core.ragged import offsets_of
from datamodules.core.storage import Part, check_folder
from datamodules.text.tokenization import Lexicon, Tokenizer


class TokenStore:
    """The tokens of n texts: text i is `tokens[offsets[i]:offsets[i + 1]]`, positions in the lexicon.

    Tokens, int32 [all tokens], and offsets, int64 [n + 1], are read-only. The lexicon is in order of first occurrence.
    """

    def __init__(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], lexicon: list[str]) -> None:
        # Array class and read-only flag are part of a kernel's type: with equal ones, each kernel is compiled once.
        self.tokens, self.offsets = np.asarray(tokens), np.asarray(offsets)
        self.tokens.flags.writeable = self.offsets.flags.writeable = False
        self.lexicon = lexicon
        self._origin: tuple[Path, str] | None = None

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> TokenStore:
        """Map the files that `save` wrote; see `check_folder`."""
        # Checksums are compared (about a second per GB): a wrong number would make kernels read outside their arrays.
        check_folder(folder, fingerprint, contents=True)
        tokens = map_array(folder / "tokens.npy", np.int32)
        offsets = map_array(folder / "offsets.npy", np.int64)
        lexicon: list[str] = json.loads((folder / "lexicon.json").read_text())
        check_starts(folder / "offsets.npy", offsets, len(tokens))
        check_numbers(folder / "tokens.npy", tokens, len(lexicon))
        store = cls(tokens, offsets, lexicon)
        store._origin = (folder, fingerprint)
        return store

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Tokenizer, *, max_tokens: int = 512) -> TokenStore:
        """Tokenise in memory."""
        lexicon, tokens, lengths = Lexicon(), array("i"), array("q")
        for row in tokenizer.encode(texts, lexicon):
            tokens.extend(row[:max_tokens])
            lengths.append(min(len(row), max_tokens))
        return cls(np.asarray(tokens, np.int32), offsets_of(lengths), list(lexicon))

    def save(self, folder: Path) -> None:
        """Write the files that `open` maps."""
        np.save(folder / "tokens.npy", self.tokens)
        np.save(folder / "offsets.npy", self.offsets)
        (folder / "lexicon.json").write_text(json.dumps(self.lexicon))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def is_kept(self) -> bool:
        """True for a store on the disk."""
        return self._origin is not None

    @property
    def part(self) -> Part:
        """Name and fingerprint of the folder of a store on the disk."""
        if self._origin is None:
            raise ValueError("the texts were tokenised in memory and have no folder")
        return self._origin[0].name, self._origin[1]

    def words(self, row: int) -> list[str]:
        """Return the tokens of one text."""
        return [self.lexicon[number] for number in self.tokens[self.offsets[row] : self.offsets[row + 1]]]

    def __reduce__(self) -> tuple[object, ...]:
        # A process that is spawned (not forked) receives a pickled data set; it maps the same files.
        if self._origin:
            return TokenStore.open, self._origin
        return TokenStore, (self.tokens, self.offsets, self.lexicon)


@njit()
def count_tokens(
    tokens: NDArray[np.int32], offsets: NDArray[np.int64], num_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the texts with each token, and its occurrences in all texts; both int64 [num_tokens].

    Text i is `tokens[offsets[i]:offsets[i + 1]]`; a token is in 0..num_tokens - 1.
    """
    texts = np.zeros(num_tokens, np.int64)
    occurrences = np.zeros(num_tokens, np.int64)
    last = np.full(num_tokens, -1, np.int32)
    for text in range(len(offsets) - 1):
        for position in range(offsets[text], offsets[text + 1]):
            token = tokens[position]
            occurrences[token] += 1
            if last[token] != text:
                last[token] = text
                texts[token] += 1
    return texts, occurrences


def word_counts(stores: Iterable[TokenStore]) -> Counter[str]:
    """Return the number of occurrences of each word in the texts of all stores."""
    counts: Counter[str] = Counter()
    for store in stores:
        _, occurrences = count_tokens(store.tokens, store.offsets, len(store.lexicon))
        counts.update(dict(zip(store.lexicon, occurrences.tolist(), strict=True)))
    return counts
