"""What one encoder makes of a memory's texts: vectors on the disk beside the memory, which grow with it.

The vectors belong to the memory and to the encoder, so everyone who reads both shares them: training, tuning, test
and prediction. A version of the memory adds a folder with the vectors of its new rows and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import ArrayWriter, RowLookup, map_array
from datamodules.core.storage import (
    check_folder,
    fingerprint_of,
    is_whole,
    lock,
    named_disk_errors,
    new_folder,
)
from datamodules.retrieval.base import Hits
from datamodules.retrieval.dense.retriever import nearest
from datamodules.retrieval.folding import text_hashes
from datamodules.retrieval.memories.folder_memory import FolderMemory

#: Texts in, vectors [n, d] out; 0 for a text without tokens.
Encode: TypeAlias = Callable[[list[str]], NDArray[np.float32]]

#: Texts that are encoded and written together.
_TEXTS = 4096


class EncodedMemory:
    """A memory with the vectors of its rows.

    Attributes:
        memory: whose rows.
        vectors: float32 [n, d]; 0 for a text without tokens.
    """

    def __init__(
        self, memory: FolderMemory, vectors: NDArray[np.float32], encode: Encode, encoder: str | None = None
    ) -> None:
        """Put together what `open` found; `vectors` may also be another encoder's, kept in no file (None)."""
        self.memory = memory
        self.encoder = encoder
        self.vectors = vectors
        self._encode = encode
        self._empty = np.flatnonzero(~vectors.any(axis=1))
        self._lookup = RowLookup.of(text_hashes(memory.rows.texts))

    @classmethod
    def open(cls, memory: FolderMemory, encoder: str, encode: Encode) -> EncodedMemory:
        """Map the vectors of a memory's version; those that are missing are made.

        Processes that make the same ones wait for the first.

        Args:
            memory: whose rows.
            encoder: fingerprint of the encoder.
            encode: the encoder.

        Raises:
            InputError: the folder can't be written.
        """
        parts, start = [], 0
        for version, end in memory.versions():
            rows = str(check_folder(memory.folder / f"rows-{version}")["fingerprint"])
            fingerprint = fingerprint_of({"rows": rows, "encoder": encoder})
            folder = encodings_folder(memory.folder, encoder) / f"rows-{version}"
            # What is whole is read without a lock: the folder may be one that nobody can write to.
            if not is_whole(folder, fingerprint):
                with lock(folder), named_disk_errors(folder):
                    if not is_whole(folder, fingerprint):
                        with new_folder(folder, fingerprint) as partial:
                            _write(memory.rows.texts, start, end, encode, partial)
            parts.append(map_array(folder / "vectors.npy"))
            start = end
        return cls(memory, parts[0] if len(parts) == 1 else np.concatenate(parts), encode, encoder)

    def is_of(self, memory: FolderMemory, encoder: str) -> bool:
        """Whether it is this version of this memory, read by the encoder with this fingerprint."""
        return (self.memory.fingerprint, self.encoder) == (memory.fingerprint, encoder)

    @staticmethod
    def missing(memory: FolderMemory, encoder: str) -> int:
        """How many rows of a memory's version `open` would have to encode."""
        folder, start, rows = encodings_folder(memory.folder, encoder), 0, 0
        for version, end in memory.versions():
            if not (folder / f"rows-{version}").exists():
                rows += end - start
            start = end
        return rows

    def read_by(self, encode: Encode) -> EncodedMemory:
        """The same memory read by another encoder; its vectors are kept in no file."""
        vectors = [
            encode(list(self.memory.rows.texts[first : first + _TEXTS]))
            for first in range(0, len(self.memory), _TEXTS)
        ]
        return EncodedMemory(self.memory, np.concatenate(vectors), encode)

    def search(
        self, queries: NDArray[np.float32], k: int, exclude: Sequence[Sequence[int]] | None = None
    ) -> Hits:
        """The best k rows of the memory for each vector [q, d]; all vectors have length 1; see `dense.nearest`."""
        return nearest(self.vectors, self._empty, queries, k, exclude)

    def rows_of(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """A row with each text [n]; -1 where there is none."""
        return self._lookup.first_rows(text_hashes(texts)).astype(np.int64)

    def vectors_of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of texts [n, d]: those of the memory's own texts are looked up, the others encoded once."""
        rows = self.rows_of(texts)
        known = rows >= 0
        found = np.empty((len(texts), self.vectors.shape[1]), np.float32)
        found[known] = self.vectors[rows[known]]
        new = {texts[row]: None for row in np.flatnonzero(~known).tolist()}
        if new:
            number = {text: position for position, text in enumerate(new)}
            encoded = self._encode(list(new))
            found[~known] = encoded[[number[texts[row]] for row in np.flatnonzero(~known).tolist()]]
        return found


def encodings_folder(memory: Path, encoder: str) -> Path:
    """Where a memory keeps what an encoder made of its rows."""
    return memory / f"encodings-{encoder[:16]}"


def _write(texts: Sequence[str], start: int, end: int, encode: Encode, folder: Path) -> None:
    with ArrayWriter(folder / "vectors.npy", np.float32) as writer:
        for first in range(start, end, _TEXTS):
            writer.write(encode(list(texts[first : min(first + _TEXTS, end)])))
