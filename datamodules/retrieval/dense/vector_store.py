"""Vectors of texts by an encoder, in a folder: no text is encoded twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter, RowLookup, map_array
from datamodules.core.errors import InputError
from datamodules.retrieval.folding import text_hashes

log = logging.getLogger(__name__)

#: An encoder of n texts: their vectors [n, d], which are 0 for a text without tokens.
Encode: TypeAlias = Callable[[list[str]], NDArray[np.float32]]

#: Texts that are encoded together.
TEXTS = 4096


class EncodedTexts(NamedTuple):
    """n texts with their vectors, which are mapped from a folder: a part of a store, or the index of a retriever."""

    #: the rows of the texts by their hashes.
    lookup: RowLookup
    #: float32 [n, d]: of length 1; 0 for a text without tokens.
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, texts: Iterable[str], vectors: NDArray[np.float32]) -> EncodedTexts:
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

    def vectors_of(self, texts: Sequence[str], encode: Encode) -> NDArray[np.float32]:
        """Return the vectors of any texts [m, d]; others than these are encoded, equal ones once."""
        rows = self.rows_of(texts)
        vectors = np.empty((len(texts), self.vectors.shape[1]), np.float32)
        vectors[rows >= 0] = self.vectors[rows[rows >= 0]]
        if unknown := [texts[position] for position in np.flatnonzero(rows < 0).tolist()]:
            vectors[rows < 0] = encode_distinct(unknown, encode)
        return vectors


class VectorStore:
    """The vectors of texts by one encoder, looked up by the hashes of the texts, in a folder.

    Dense search makes one in the cache, and `EncodedMemory` in the folder of a memory. Texts that are not in the store
    are encoded and stored as one more part, a folder that is whole or absent; several processes may share a store.
    """

    def __init__(self, parent: Path, encoder: str) -> None:
        """Map the vectors by an encoder, with this fingerprint or its first 16 digits."""
        self.folder = store_folder(parent, encoder)
        self._parts = {
            path: EncodedTexts.open(path)
            for path in sorted(self.folder.glob("part-*"))
            if storage.is_whole(path, self._fingerprint(path))
        }

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
    ) -> NDArray[np.float32]:
        """Return the vectors of texts [n, d]; missing ones are encoded and stored, and mapped if all are missing.

        They are looked up in `known`; None = in all parts. Fewer missing ones than `fewest` are not stored.
        """
        hashes = text_hashes(texts)
        unknown = np.ones(len(texts), bool)
        # Arrays of vectors, and for each the row of each text: -1 where another array has it.
        pieces: list[tuple[NDArray[np.float32], NDArray[np.integer]]] = []
        for part in self.parts if known is None else known:
            if len(part.vectors) == len(hashes) and np.array_equal(part.lookup.keys_by_row(), hashes):
                return part.vectors
            rows = part.lookup.first_rows(hashes)
            pieces.append((part.vectors, np.where(unknown, rows, -1)))
            unknown &= rows < 0
        if unknown.any():
            new = self._encode(texts, np.flatnonzero(unknown), hashes[unknown], encode, fewest)
            if unknown.all():
                return new
            pieces.append((new, np.where(unknown, np.cumsum(unknown) - 1, -1)))
        vectors = np.empty((len(texts), pieces[0][0].shape[1]), np.float32)
        for stored, places in pieces:
            vectors[places >= 0] = stored[places[places >= 0]]
        return vectors

    def keep(self, hashes: NDArray[np.uint64]) -> None:
        """Delete the vectors of texts with other hashes, for good; open the store again to read it."""
        storage.delete_leftovers(self.folder)
        for folder, part in self._parts.items():
            own = part.lookup.keys_by_row()
            kept = np.flatnonzero(np.isin(own, hashes))
            if len(kept) < len(own):
                if len(kept):
                    starts = range(0, len(kept), TEXTS)
                    self._write(own[kept], (part.vectors[kept[first : first + TEXTS]] for first in starts))
                storage.delete(folder)

    def _encode(
        self,
        texts: Sequence[str],
        rows: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        encode: Encode,
        fewest: int,
    ) -> NDArray[np.float32]:
        """Encode some of the texts; return and, if possible, store their vectors."""

        def blocks() -> Iterator[NDArray[np.float32]]:
            for first in range(0, len(rows), TEXTS):
                yield encode([texts[row] for row in rows[first : first + TEXTS].tolist()])

        if len(rows) >= fewest:
            try:
                folder = self._write(hashes, blocks())
            except InputError as error:  # a full or read-only disk
                log.warning("vectors are not kept for other commands: %s", error)
            else:
                self._parts = {**self._parts, folder: EncodedTexts.open(folder)}  # others may iterate over it
                return self._parts[folder].vectors
        return np.concatenate([*blocks()])

    def _write(self, hashes: NDArray[np.uint64], blocks: Iterable[NDArray[np.float32]]) -> Path:
        """Store the vectors of texts with these hashes [n], in blocks; return the folder of the part."""

        def save(partial: Path) -> None:
            RowLookup.of(hashes).save(partial)
            with ArrayWriter(partial / "vectors.npy", np.float32) as writer:
                for vectors in blocks:
                    writer.write(vectors)

        path = self.folder / f"part-{storage.fingerprint_of({'texts': hashes.tobytes().hex()})[:16]}"
        storage.build_folder(path, self._fingerprint(path), save)
        return path

    def _fingerprint(self, path: Path) -> str:
        return storage.fingerprint_of({"store": self.folder.name, "part": path.name})


def encode_distinct(texts: Sequence[str], encode: Encode) -> NDArray[np.float32]:
    """Return the vectors of texts [n, d]; equal texts are encoded once."""
    number = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    return encode(list(number))[[number[text] for text in texts]]


def store_folder(parent: Path, encoder: str) -> Path:
    """Return the folder of the vectors by an encoder with this fingerprint."""
    return parent / f"vectors-{encoder[:16]}"
