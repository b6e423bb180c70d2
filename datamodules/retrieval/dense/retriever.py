"""Neighbors by meaning: texts as vectors of a pre-trained encoder, compared by their angle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core.arrays import ArrayWriter, RowLookup, check_numbers, damaged, map_array
from datamodules.core.errors import InputError
from datamodules.retrieval.base import ExcludedRows, FolderRetriever, Hits, check_search
from datamodules.retrieval.dense.nearest import nearest
from datamodules.retrieval.dense.text_vectors import EncodingRetriever, look_up_vectors
from datamodules.retrieval.folding import text_hashes

# Texts tokenized together.
_TEXTS = 4096


class _Index(NamedTuple):
    #: float32 [n, d]: the texts' vectors, of length 1; 0 for a text without tokens.
    vectors: NDArray[np.float32]
    #: int32: the rows of texts without tokens, which are never hits; ascending.
    empty: NDArray[np.int32]
    #: the rows of the texts by their hashes.
    lookup: RowLookup


class DenseRetriever(EncodingRetriever, FolderRetriever[_Index]):
    """Ranks texts by the cosine of their vectors and the query's, exactly and without a server.

    The score of a hit is (1 + cos) / 2, at least `LEAST_SCORE`. Every row is a hit, except texts without tokens.
    """

    def _build(
        self, texts: Sequence[str], folder: Path, old: tuple[_Index, NDArray[np.int64]] | None
    ) -> None:
        if len(texts) == 0:
            raise InputError(f"{folder}: an index needs at least one text")
        # Where no text is new, no encoder is loaded.
        size = self.vectors.size if old is None else old[0].vectors.shape[1]
        hashes = text_hashes(texts)
        before, known = np.empty((0, size), np.float32), np.full(len(texts), -1)
        if old is not None:
            before, known = old[0].vectors, old[0].lookup.first_rows(hashes).astype(np.int64)
        unknown = np.flatnonzero(known < 0)
        new = [texts[row] for row in unknown.tolist()]
        # Encoded once, duplicates get the same bits: their scores are equal, and the row number decides.
        number = {text: position for position, text in enumerate(dict.fromkeys(new), len(before))}
        with ArrayWriter(folder / "unknown.npy", np.float32, (size,)) as writer:
            for vectors in self.vectors.blocks(list(number), _TEXTS):
                writer.write(vectors)
        encoded = map_array(folder / "unknown.npy", np.float32, dimensions=2)
        known[unknown] = [number[text] for text in new]
        empty = []
        with ArrayWriter(folder / "vectors.npy", np.float32, (size,)) as writer:
            for first in range(0, len(texts), _TEXTS):
                part = known[first : first + _TEXTS]
                is_new = part >= len(before)
                vectors = np.empty((len(part), size), np.float32)
                vectors[~is_new], vectors[is_new] = before[part[~is_new]], encoded[part[is_new] - len(before)]
                empty.append((writer.length + np.flatnonzero(~vectors.any(axis=1))).astype(np.int32))
                writer.write(vectors)
        (folder / "unknown.npy").unlink()
        np.save(folder / "empty.npy", np.concatenate(empty))
        RowLookup.of(hashes).save(folder)

    def _map(self, folder: Path) -> _Index:
        vectors = map_array(folder / "vectors.npy", np.float32, dimensions=2)
        empty, lookup = map_array(folder / "empty.npy", np.int32), RowLookup.open(folder)
        check_numbers(folder / "empty.npy", empty, len(vectors))
        if len(lookup.rows) != len(vectors):
            raise damaged(folder / "vectors.npy", f"has {len(vectors)} vectors of {len(lookup.rows)} texts")
        return _Index(vectors, empty, lookup)

    @override
    def close(self) -> None:
        super().close()
        self.vectors.close()

    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """See `Retriever.search`; a text without tokens has no hits."""
        check_search(texts, k, exclude)
        index = self._opened()
        queries = self._query_vectors(texts, index)
        return nearest(index.vectors, index.empty, queries, k, exclude)

    def _query_vectors(self, texts: Sequence[str], index: _Index) -> NDArray[np.float32]:
        """Return vectors [n, d]; texts of the collection are looked up, unless queries have their own encoder."""

        def encode(some: Sequence[str]) -> NDArray[np.float32]:
            vectors = self.vectors.of(some, _TEXTS, queries=True)
            self.vectors.check_size(vectors.shape[1], index.vectors.shape[1], "the index")
            return vectors

        if len(texts) and self.vectors.has_query_side:
            return encode(texts)
        return look_up_vectors(texts, index.vectors, index.lookup.first_rows(text_hashes(texts)), encode)
