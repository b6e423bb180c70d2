"""The vectors of a memory's texts by one encoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datamodules.retrieval.base import ExcludedRows, Hits
from datamodules.retrieval.dense.nearest import nearest
from datamodules.retrieval.dense.vector_store import TEXTS, Encode, EncodedTexts, VectorStore, store_folder
from datamodules.retrieval.memories.folder_memory import FolderMemory

#: Rows whose cosines with each other stand for those of all.
_SPREAD_ROWS = 500


class EncodedMemory:
    """A memory with the vectors of its rows, float32 [n, d]; 0 for a text without tokens.

    A model makes one with its encoder, and stores the vectors in the memory's folder. Members of an ensemble search it,
    and KNNBiLSTM reads the vectors of its memories from it.
    """

    def __init__(
        self, memory: FolderMemory, vectors: NDArray[np.float32], encode: Encode, encoder: str | None = None
    ) -> None:
        # `encoder` is the fingerprint of the encoder, None if the vectors are not stored.
        self.memory = memory
        self.encoder = encoder
        self.vectors = vectors
        self._encode = encode
        self._texts = EncodedTexts.of(memory.rows.texts, vectors)

    @classmethod
    def open(cls, memory: FolderMemory, encoder: str, encode: Encode) -> EncodedMemory:
        """Map the vectors by the encoder with this fingerprint; missing ones are encoded."""
        vectors = VectorStore(store_folder(memory.folder, encoder)).vectors(memory.rows.texts, encode)
        return cls(memory, vectors, encode, encoder)

    def is_of(self, memory: FolderMemory, encoder: str) -> bool:
        """Return whether these are this memory's vectors by the encoder with this fingerprint."""
        return (self.memory.fingerprint, self.encoder) == (memory.fingerprint, encoder)

    def encoded_by(self, encode: Encode) -> EncodedMemory:
        """Return the same memory with the vectors of another encoder, which are not stored."""
        texts = self.memory.rows.texts
        vectors = [encode(texts[first : first + TEXTS]) for first in range(0, len(texts), TEXTS)]
        return EncodedMemory(self.memory, np.concatenate(vectors), encode)

    def search(self, queries: NDArray[np.float32], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """Return the best k rows for each vector [q, d]; all vectors have length 1; see `nearest`."""
        return nearest(self.vectors, queries, k, exclude)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Mean and standard deviation of the cosines of rows with each other, by some rows; 0 and 1 of a single one."""
        chosen = self.vectors[np.unique(np.linspace(0, len(self.vectors) - 1, _SPREAD_ROWS).astype(int))]
        pairs = (chosen @ chosen.T)[np.triu_indices(len(chosen), 1)]
        return (float(pairs.mean()), float(pairs.std()) or 1.0) if len(pairs) else (0.0, 1.0)

    def rows_of(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Return a row with each text [n]; -1 where there is none."""
        return self._texts.rows_of(texts).astype(np.int64)

    def vectors_of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts [n, d]; texts outside the memory are encoded."""
        return self._texts.vectors_of(texts, self._encode)
