"""Duplicates: texts that are equal after folding Unicode's compatibility forms, case, punctuation and white space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from string import punctuation
from unicodedata import normalize

import numpy as np
import regex
from numpy.typing import NDArray

#: Version of `fold`, part of the fingerprints of everything that was built with its hashes.
FOLDING = 2

# Symbols (+, $, emoji) are not punctuation in Unicode and carry meaning, so they stay.
_PUNCTUATION = regex.compile(r"\p{P}+")
_INVISIBLE = regex.compile(r"[\p{Cf}\p{Variation_Selector}]+")
_ASCII_PUNCTUATION = str.maketrans({mark: " " for mark in punctuation if _PUNCTUATION.match(mark)})


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each text [n]; among a million texts, two collide with probability 3e-8."""
    data = b"".join(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(data, "<u8").astype(np.uint64)


def fold(text: str) -> str:
    """Return the text in NFKC, its case folded, each run of white space and punctuation replaced by a space."""
    if text.isascii():  # most texts are, and this branch is ten times as fast
        plain = text.lower()
        words = plain.translate(_ASCII_PUNCTUATION).split()
    else:
        # Case folding may leave characters that NFKC combines, so it is applied twice.
        plain = normalize("NFKC", normalize("NFKC", text).casefold())
        plain = _INVISIBLE.sub("", plain)
        words = _PUNCTUATION.sub(" ", plain).split()
    # A text of punctuation alone keeps it; otherwise all such texts would be duplicates.
    return " ".join(words or plain.split())


def distinct_rows(texts: Sequence[str], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the first row [m] of each of n texts that is not blank, by their folded hashes [n]."""
    rows = np.sort(np.unique(hashes, return_index=True)[1])
    return rows[[bool(text.strip()) for text in np.array(texts[:], object)[rows]]]


def fold_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return the hash of each folded text [n]: duplicates have equal hashes. A collision only hides one neighbour."""
    return text_hashes(map(fold, texts))
