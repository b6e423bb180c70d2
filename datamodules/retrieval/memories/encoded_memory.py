"""The vectors of a memory's texts by one encoder, stored in the memory's folder: for each version its new rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter, RowLookup, damaged, map_array
from datamodules.retrieval.base import ExcludedRows, Hits
from datamodules.retrieval.dense.nearest import nearest
from datamodules.retrieval.dense.text_vectors import look_up_vectors
from datamodules.retrieval.folding import text_hashes
from datamodules.retrieval.memories.folder_memory import FolderMemory
from datamodules.retrieval.memories.row_versions import ENCODINGS, vectors_fingerprint

#: An encoder of n texts: their vectors [n, d], which are 0 for a text without tokens.
Encode: TypeAlias = Callable[[list[str]], NDArray[np.float32]]

_TEXTS = 4096


class EncodedMemory:
    """A memory with the vectors of its rows, float32 [n, d]; 0 for a text without tokens."""

    def __init__(
        self, memory: FolderMemory, vectors: NDArray[np.float32], encode: Encode, encoder: str | None = None
    ) -> None:
        # `encoder` is the fingerprint of the encoder, None if the vectors are not stored.
        self.memory = memory
        self.encoder = encoder
        self.vectors = vectors
        self._encode = encode
        self._empty = np.flatnonzero(~vectors.any(axis=1))
        self._lookup = RowLookup.of(text_hashes(memory.rows.texts))

    @classmethod
    def open(cls, memory: FolderMemory, encoder: str, encode: Encode) -> EncodedMemory:
        """Map the vectors by the encoder with this fingerprint; missing ones are encoded."""
        parts, start = [], 0
        for part, count in memory.parts():
            if count == 0:
                continue
            fingerprint = vectors_fingerprint(part, encoder)
            folder = encodings_folder(memory.folder, encoder) / part.name
            # A whole folder is read without a lock: nobody may be permitted to write to it.
            if not storage.is_whole(folder, fingerprint):
                save = partial(_write, memory.written.texts, start, start + count, encode)
                storage.build_folder(folder, fingerprint, save, encoder=encoder)
            vectors = map_array(folder / "vectors.npy", np.float32, dimensions=2)
            if len(vectors) != count:
                raise damaged(folder / "vectors.npy", f"has {len(vectors)} vectors of {count} rows")
            parts.append(vectors)
            start += count
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(memory) < start or (memory.order != np.arange(start)).any():
            vectors = vectors[memory.order]
        return cls(memory, vectors, encode, encoder)

    def is_of(self, memory: FolderMemory, encoder: str) -> bool:
        """Return whether these are this memory's vectors by the encoder with this fingerprint."""
        return (self.memory.fingerprint, self.encoder) == (memory.fingerprint, encoder)

    @staticmethod
    def missing(memory: FolderMemory, encoder: str) -> int:
        """Return the number of rows that `open` would encode."""
        folder = encodings_folder(memory.folder, encoder)
        return sum(count for part, count in memory.parts() if not (folder / part.name).exists())

    def encoded_by(self, encode: Encode) -> EncodedMemory:
        """Return the same memory with the vectors of another encoder, which are not stored."""
        texts = self.memory.rows.texts
        vectors = [encode(texts[first : first + _TEXTS]) for first in range(0, len(texts), _TEXTS)]
        return EncodedMemory(self.memory, np.concatenate(vectors), encode)

    def search(self, queries: NDArray[np.float32], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """Return the best k rows for each vector [q, d]; all vectors have length 1; see `nearest`."""
        return nearest(self.vectors, self._empty, queries, k, exclude)

    def rows_of(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return a row with each text [n]; -1 where there is none."""
        return self._lookup.first_rows(text_hashes(texts)).astype(np.int64)

    def vectors_of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts [n, d]; texts outside the memory are encoded."""
        return look_up_vectors(texts, self.vectors, self.rows_of(texts), self._encode)


def encodings_folder(memory: Path, encoder: str) -> Path:
    """Return the folder of a memory with the vectors of its rows by an encoder."""
    return memory / f"{ENCODINGS}{encoder[:16]}"


def _write(texts: Sequence[str], start: int, end: int, encode: Encode, folder: Path) -> None:
    with ArrayWriter(folder / "vectors.npy", np.float32) as writer:
        for first in range(start, end, _TEXTS):
            writer.write(encode(list(texts[first : min(first + _TEXTS, end)])))
