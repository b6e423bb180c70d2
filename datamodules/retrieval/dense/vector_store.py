"""Vectors of texts by an encoder, in a folder: no text is encoded twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter, Floats, RowLookup, ULongs, map_array
from datamodules.core.errors import InputError
from datamodules.retrieval.folding import text_hashes

log = logging.getLogger(__name__)

#: An encoder of n texts: their vectors [n, d], which are 0 for a text without tokens.
Encode: TypeAlias = Callable[[list[str]], Floats]

#: Texts that are encoded together.
TEXTS = 4096
#: Parts of a store in a memory; a change of the memory merges some of them if there are more.
MOST_PARTS = 16


class EncodedTexts(NamedTuple):
    """n texts with their vectors, which are mapped from a folder: a part of a store, or the index of a retriever."""

    #: the rows of the texts by their hashes.
    lookup: RowLookup
    #: float32 [n, d]: of length 1; 0 for a text without tokens.
    vectors: Floats

    @classmethod
    def of(cls, texts: Iterable[str], vectors: Floats) -> EncodedTexts:
        """Return texts [n] with these vectors [n, d]."""
        return cls(RowLookup.of(text_hashes(texts)), vectors)

    @classmethod
    def open(cls, folder: Path) -> EncodedTexts:
        """Map the vectors and the lookup; raise a `DamagedError` if they do not fit together."""
        lookup = RowLookup.open(folder)
        return cls(lookup, map_array(folder / "vectors.npy", np.float32, 2, length=len(lookup.rows)))

    def rows_of(self, texts: Iterable[str]) -> NDArray[np.int32]:
        """Return a row with each text [m]; -1 where there is none."""
        return self.lookup.first_rows(text_hashes(texts))

    def vectors_of(self, texts: Sequence[str], encode: Encode) -> Floats:
        """Return the vectors of any texts [m, d]; others than these are encoded, equal ones once."""
        vectors, unknown = _look_up([self], text_hashes(texts))
        if unknown.any():
            vectors[unknown] = encode_distinct(list(compress(texts, unknown)), encode)
        return vectors


class VectorStore:
    """The vectors of texts by one encoder, looked up by the hashes of the texts, in a folder.

    Dense search makes one in the cache, and `EncodedMemory` in the folder of a memory. Texts that are not in the store
    are encoded and stored as one more part, a folder that is whole or absent; several processes may share a store.
    """

    def __init__(self, folder: Path) -> None:
        """Map the vectors in a `store_folder`."""
        self.folder = folder
        self._parts: dict[Path, EncodedTexts] = {}
        for path in sorted(self.folder.glob("part-*")):
            with suppress(FileNotFoundError):  # another process has merged it: its texts are encoded again
                if storage.is_whole(path, self._fingerprint(path)):
                    self._parts[path] = EncodedTexts.open(path)

    @property
    def parts(self) -> list[EncodedTexts]:
        """The stored texts: those of the start, and those that this process has added."""
        return [*self._parts.values()]

    def missing(self, texts: Sequence[str]) -> int:
        """Return the number of texts that `vectors` would encode."""
        hashes, unknown = text_hashes(texts), np.ones(len(texts), bool)
        for part in self.parts:
            unknown &= part.lookup.first_rows(hashes) < 0
        return int(unknown.sum())

    def vectors(
        self, texts: Sequence[str], encode: Encode, known: list[EncodedTexts] | None = None, fewest: int = 1
    ) -> Floats:
        """Return the vectors of texts [n, d]; missing ones are encoded and stored, and mapped if all are missing.

        They are looked up in `known`; None = in all parts. Fewer missing ones than `fewest` are not stored.
        """
        hashes = text_hashes(texts)
        parts = self.parts if known is None else known
        for part in parts:
            if len(part.vectors) == len(hashes) and np.array_equal(part.lookup.keys_by_row(), hashes):
                return part.vectors
        vectors, unknown = _look_up(parts, hashes)
        if unknown.any():
            if unknown.all():
                return self._encode(texts, hashes, encode, fewest)
            vectors[unknown] = self._encode(list(compress(texts, unknown)), hashes[unknown], encode, fewest)
        return vectors

    def merge(self) -> None:
        """Make one part of the smaller half of the parts: a vector of a large part is seldom written again."""
        ascending = sorted(self._parts, key=lambda path: len(self._parts[path].vectors))
        self._rewrite(ascending[: len(ascending) // 2])

    def keep(self, hashes: ULongs) -> None:
        """Make one part of the vectors of texts with these hashes, in this order; delete the others, for good."""
        storage.delete_leftovers(self.folder)
        self._rewrite([*self._parts], hashes)

    def _rewrite(self, folders: Sequence[Path], wanted: ULongs | None = None) -> None:
        """Replace parts by one with the vectors of all, or of wanted texts; open the store again to read it."""
        parts = [self._parts[folder] for folder in folders]
        stored = np.concatenate([np.empty(0, np.uint64), *(part.lookup.keys for part in parts)])
        hashes = np.unique(stored) if wanted is None else wanted[np.isin(wanted, stored)]
        starts = range(0, len(hashes), TEXTS)
        blocks = (_look_up(parts, hashes[first : first + TEXTS])[0] for first in starts)
        rewritten = self._write(hashes, blocks) if len(hashes) else None
        for folder in {*folders} - {rewritten}:
            folder.with_name(f".{folder.name}.lock").unlink(missing_ok=True)
            storage.delete(folder)

    def _encode(self, texts: Sequence[str], hashes: ULongs, encode: Encode, fewest: int) -> Floats:
        """Encode texts with these hashes [n]; return and, if possible, store their vectors."""

        def blocks() -> Iterator[Floats]:
            return (encode([*texts[first : first + TEXTS]]) for first in range(0, len(texts), TEXTS))

        if len(texts) >= fewest:
            try:
                folder = self._write(hashes, blocks())
                return self._parts[folder].vectors
            # A full or read-only disk; or another process has made the same part, and a third one has merged it.
            except (InputError, FileNotFoundError) as error:
                log.warning("vectors are not kept for other commands: %s", error)
        return np.concatenate([*blocks()])

    def _write(self, hashes: ULongs, blocks: Iterable[Floats]) -> Path:
        """Store the vectors of texts with these hashes [n], in blocks; return the folder of the part."""

        def save(partial: Path) -> None:
            RowLookup.of(hashes).save(partial)
            with ArrayWriter(partial / "vectors.npy", np.float32) as writer:
                for vectors in blocks:
                    writer.write(vectors)

        path = self.folder / f"part-{storage.fingerprint_of({'texts': hashes.tobytes().hex()})[:16]}"
        storage.build_folder(path, self._fingerprint(path), save)
        self._parts = {**self._parts, path: EncodedTexts.open(path)}  # others may iterate over it
        return path

    def _fingerprint(self, path: Path) -> str:
        return storage.fingerprint_of({"store": self.folder.name, "part": path.name})


def _look_up(parts: Sequence[EncodedTexts], hashes: ULongs) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the vectors of texts with these hashes [n, d], and which of them are in no part: bool [n]."""
    unknown = np.ones(len(hashes), bool)
    vectors = np.empty((len(hashes), parts[0].vectors.shape[1] if parts else 0), np.float32)
    for part in parts:
        rows = np.where(unknown, part.lookup.first_rows(hashes), -1)
        vectors[rows >= 0] = part.vectors[rows[rows >= 0]]
        unknown &= rows < 0
    return vectors, unknown


def encode_distinct(texts: Sequence[str], encode: Encode) -> Floats:
    """Return the vectors of texts [n, d]; equal texts are encoded once."""
    number = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    return encode(list(number))[[number[text] for text in texts]]


def store_folder(parent: Path, encoder: str) -> Path:
    """Return the folder of the vectors by an encoder with this fingerprint."""
    return parent / f"vectors-{encoder[:16]}"
