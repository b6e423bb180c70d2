"""Hashes of texts, and when two texts are copies of each other.

Copies are equal after folding Unicode's compatibility forms, case, punctuation and white space. So a row with a full
stop more, or written with combining accents, is still the same row.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from string import punctuation
from unicodedata import normalize

import numpy as np
import regex
from numpy.typing import NDArray

#: Hashes on disk were made by this way of folding; another one makes them anew.
FOLDING = 2

# Symbols (+, $, emoji) are no punctuation in Unicode, and mean something: only their invisible companions go.
_PUNCTUATION = regex.compile(r"\p{P}+")
_INVISIBLE = regex.compile(r"[\p{Cf}\p{Variation_Selector}]+")
_ASCII_PUNCTUATION = str.maketrans({mark: " " for mark in punctuation if _PUNCTUATION.match(mark)})


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of each text [n], the same on every machine.

    Two different texts collide with probability n^2 / 2^65: 3e-8 for a million texts.
    """
    digests = b"".join(
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def fold(text: str) -> str:
    """The text in NFKC, its case folded, and runs of white space and punctuation made one space.

    A text of punctuation alone keeps it, or all such texts would be copies.
    """
    if text.isascii():  # nearly all are, and this is ten times as fast
        plain = text.lower()
        words = plain.translate(_ASCII_PUNCTUATION).split()
    else:
        # Folding case may leave what NFKC would join again.
        plain = normalize("NFKC", normalize("NFKC", text).casefold())
        plain = _INVISIBLE.sub("", plain)
        words = _PUNCTUATION.sub(" ", plain).split()
    return " ".join(words or plain.split())


def fold_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The hash of each folded text [n]: those of copies are equal. A collision only hides one neighbour."""
    return text_hashes(map(fold, texts))
