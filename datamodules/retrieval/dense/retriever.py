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
from datamodules.retrieval.dense.text_vectors import EncodingRetriever
from datamodules.retrieval.dense.vector_store import TEXTS, EncodedTexts
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
        before = EncodedTexts.of((), np.empty((0, self.vectors.size), np.float32)) if old is None else old[0]
        # Encoded once, duplicates get the same bits: their scores are equal, and the row number decides.
        unknown = dict.fromkeys(texts[row] for row in np.flatnonzero(before.rows_of(texts) < 0).tolist())
        number = {text: position for position, text in enumerate(unknown)}
        with ArrayWriter(folder / "new.npy", np.float32, before.vectors.shape[1:]) as writer:
            for vectors in self.vectors.blocks(list(number), TEXTS):
                writer.write(vectors)
        new = map_array(folder / "new.npy", np.float32, dimensions=2)
        with ArrayWriter(folder / "vectors.npy", np.float32) as writer:
            for first in range(0, len(texts), TEXTS):
                block = texts[first : first + TEXTS]
                writer.write(before.vectors_of(block, lambda some: new[[number[text] for text in some]]))
        (folder / "new.npy").unlink()
        RowLookup.of(text_hashes(texts)).save(folder)

    def _map(self, folder: Path) -> EncodedTexts:
        return EncodedTexts.open(folder)

    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """See `Retriever.search`; a text without tokens has no hits."""
        check_search(texts, k, exclude)
        index, encode = self._opened(), partial(self.vectors.of, block=TEXTS, queries=True)
        # Texts of the collection are looked up, unless queries have vectors of their own.
        is_encoded = len(texts) > 0 and self.vectors.has_query_side
        queries = encode(texts) if is_encoded else index.vectors_of(texts, encode)
        return nearest(index.vectors, queries, k, exclude)
