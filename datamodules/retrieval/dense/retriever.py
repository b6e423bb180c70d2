"""Neighbors by meaning: texts as vectors of a pre-trained encoder, compared by their angle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import ArrayWriter, RowLookup, map_array
from datamodules.core.errors import InputError
from datamodules.retrieval.base import ExcludedRows, FolderRetriever, Hits, check_search
from datamodules.retrieval.dense.nearest import nearest
from datamodules.retrieval.dense.text_vectors import EncodingRetriever, look_up_vectors
from datamodules.retrieval.dense.vector_store import TEXTS, EncodedTexts, gather
from datamodules.retrieval.folding import text_hashes


class DenseRetriever(EncodingRetriever, FolderRetriever[EncodedTexts]):
    """Ranks texts by the cosine of their vectors and the query's, exactly and without a server.

    The score of a hit is (1 + cos) / 2, at least `LEAST_SCORE`. Every row is a hit, except texts without tokens.
    """

    def _build(
        self, texts: Sequence[str], folder: Path, old: tuple[EncodedTexts, NDArray[np.int64]] | None
    ) -> None:
        if len(texts) == 0:
            raise InputError(f"{folder}: an index needs at least one text")
        # Where no text is new, no encoder is loaded.
        size = self.vectors.size if old is None else old[0].vectors.shape[1]
        before, hashes = np.empty((0, size), np.float32), text_hashes(texts)
        known: NDArray[np.integer] = np.full(len(texts), -1)
        if old is not None:
            before, known = old[0].vectors, old[0].lookup.first_rows(hashes)
        # Encoded once, duplicates get the same bits: their scores are equal, and the row number decides.
        unknown = dict.fromkeys(texts[row] for row in np.flatnonzero(known < 0).tolist())
        number = {text: position for position, text in enumerate(unknown)}
        with ArrayWriter(folder / "new.npy", np.float32, (size,)) as writer:
            for vectors in self.vectors.blocks(list(number), TEXTS):
                writer.write(vectors)
        new = map_array(folder / "new.npy", np.float32, dimensions=2)
        with ArrayWriter(folder / "vectors.npy", np.float32) as writer:
            for first in range(0, len(texts), TEXTS):
                part = slice(first, first + TEXTS)
                rows = np.array([number.get(text, -1) for text in texts[part]])
                writer.write(gather([(before, known[part]), (new, rows)]))
        (folder / "new.npy").unlink()
        RowLookup.of(hashes).save(folder)

    def _map(self, folder: Path) -> EncodedTexts:
        return EncodedTexts.open(folder)

    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """See `Retriever.search`; a text without tokens has no hits."""
        check_search(texts, k, exclude)
        index, encode = self._opened(), partial(self.vectors.of, block=TEXTS, queries=True)
        # Texts of the collection are looked up, unless queries have vectors of their own.
        if len(texts) and self.vectors.has_query_side:
            return nearest(index.vectors, encode(texts), k, exclude)
        rows = index.lookup.first_rows(text_hashes(texts))
        return nearest(index.vectors, look_up_vectors(texts, index.vectors, rows, encode), k, exclude)
