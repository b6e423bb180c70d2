"""Hashes of texts, and when two texts are copies of each other: equal after folding case and white space."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A 64-bit hash of each text [n], the same on every machine.

    Two different texts collide with probability n^2 / 2^65: 3e-8 for a million texts.
    """
    digests = b"".join(
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def fold(text: str) -> str:
    """The text with case folded and runs of white space made one space."""
    return " ".join(text.casefold().split())


def fold_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The hash of each folded text [n]: those of copies are equal. A collision only hides one neighbour."""
    return text_hashes(map(fold, texts))
