"""Neighbours by meaning: texts as vectors of a pre-trained transformer, compared by their angle.

The search is exact. A matrix product compares a block of queries with a block of the collection, whose
vectors stay memory-mapped; a million texts of 384 numbers take 1.5 GB of disk and 0.8 GFLOP a query. What
costs time is the encoder: an encoded text is never encoded again, be it a copy or a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.retrieval.base import Hits, check_search
from datamodules.retrieval.dense.ranking import LEAST_SCORE, DenseRanking, Pooling
from datamodules.retrieval.dense.text_vectors import TextVectors
from datamodules.retrieval.embedded.folder_retriever import FolderRetriever
from datamodules.retrieval.folding import text_hashes

# Texts of one round of tokenisation; queries and rows of one matrix product (32 MB of keys).
_TEXTS = 4096
_QUERIES = 64
_ROWS = 1 << 16


class _Index(NamedTuple):
    """The arrays of an index; each is an `.npy` file of its name."""

    #: float32 [n, d]: the texts' vectors, of length 1; 0 for a text without tokens.
    vectors: NDArray[np.float32]
    #: int32: the rows of texts without tokens, which are never hits.
    empty: NDArray[np.int32]
    #: uint64 [n]: hashes of the texts, ascending, and
    hashes: NDArray[np.uint64]
    #: int32 [n]: their rows.
    hash_rows: NDArray[np.int32]

    @property
    def num_texts(self) -> int:
        """n."""
        return len(self.vectors)


class DenseRetriever(FolderRetriever[_Index]):
    """Ranks texts by the cosine of their vectors and the query's, exactly, without a server.

    The score of a hit is (1 + cos) / 2, at least `LEAST_SCORE`: positive like the lexical scores, so that
    models may divide by the best one and take logarithms. Every row is a hit, except texts without tokens.
    When texts are added, only those that are no copies are encoded.

    Args:
        encoder: a `transformers` encoder, by its name on the Hub or its folder, or the model's own: a
            checkpoint of this zoo, such as `runs/m1/checkpoints/best.ckpt`.
        pooling: how tokens become a text's vector: `mean` or `cls`. Sentence encoders tell in their
            description; most take the mean. A checkpoint has a way of its own.
        batch_size: texts encoded at once.
        max_length: tokens kept of a text; fewer if the encoder can't read as many. A checkpoint keeps as many
            as in its training.
        device: where the encoder runs, such as `cpu` or `cuda:1`; None takes a GPU if there is one.
        threads: of the encoder on a CPU; None leaves torch's setting.

    Raises:
        InputError: an argument is out of range. A missing encoder is named when it is first needed.
    """

    ranking: DenseRanking

    def __init__(
        self,
        encoder: str,
        pooling: Pooling = "mean",
        batch_size: int = 64,
        max_length: int = 256,
        device: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.ranking = DenseRanking(encoder, pooling, max_length)
        self.vectors = TextVectors(self.ranking, batch_size, device, threads)
        super().__init__()

    def _init_args(self) -> dict[str, Any]:
        return self.vectors.describe()

    def _build(self, texts: Sequence[str], folder: Path, progress: bool, after: _Index | None) -> None:
        num_old = 0 if after is None else after.num_texts
        if num_old + len(texts) == 0:
            raise InputError(f"{folder}: an index needs at least one text")
        hashes = text_hashes(texts)
        known = np.full(len(texts), -1) if after is None else _rows_of(hashes, after)
        distinct = dict.fromkeys(text for text, row in zip(texts, known.tolist(), strict=True) if row < 0)
        number = {text: position for position, text in enumerate(distinct)}
        # Copies share the bits of one vector: their scores are equal, and the row number decides. Files and
        # no writable maps: on a full disk a write to a map kills the process.
        size = self.vectors.size
        encoded = np.empty((0, size), np.float32)
        with (folder / "distinct").open("wb") as file:
            for vectors in self.vectors.blocks(list(distinct), _TEXTS, progress, delay=0):
                vectors.tofile(file)
        if distinct:
            encoded = np.memmap(folder / "distinct", np.float32, "r", shape=(len(distinct), size))
        empty = [np.empty(0, np.int32)] if after is None else [after.empty]
        with (folder / "vectors.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (num_old + len(texts), size)}
            np.lib.format.write_array_header_1_0(file, header)
            if after is not None:
                after.vectors.tofile(file)
            for first in range(0, len(texts), _TEXTS):
                rows = known[first : first + _TEXTS]
                fresh = [number[text] for text in texts[first : first + _TEXTS] if text in number]
                block = np.empty((len(rows), size), np.float32)
                block[rows < 0] = encoded[fresh]
                if after is not None:
                    block[rows >= 0] = after.vectors[rows[rows >= 0]]
                block.tofile(file)
                empty.append((num_old + first + np.flatnonzero(~block.any(axis=1))).astype(np.int32))
        (folder / "distinct").unlink()
        np.save(folder / "empty.npy", np.concatenate(empty))
        if after is not None:
            hashes = np.concatenate([after.hashes[np.argsort(after.hash_rows)], hashes])
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        np.save(folder / "hashes.npy", hashes[order])
        np.save(folder / "hash_rows.npy", order)

    def _map(self, folder: Path) -> _Index:
        # Plain arrays on top of the maps: numpy's own class makes slices slower.
        arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _Index._fields}
        return _Index(**arrays)

    def close(self) -> None:
        """Let go of the files and the encoder; `open` may follow."""
        super().close()
        self.vectors.close()

    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """The best k rows for each text; see `Retriever.search`. A text without tokens has no hits."""
        check_search(texts, k, exclude)
        index = self._opened()
        return nearest(index.vectors, index.empty, self._query_vectors(texts, index), k, exclude)

    def _query_vectors(self, texts: Sequence[str], index: _Index) -> NDArray[np.float32]:
        """[n, d]; those of the collection's own texts are looked up, unless a query has a vector of its own."""
        if len(texts) and self.vectors.has_query_side:
            return self._fitting(self.vectors.of(texts, _TEXTS, queries=True), index)
        rows = _rows_of(text_hashes(texts), index)
        vectors = np.empty((len(texts), index.vectors.shape[1]), np.float32)
        vectors[rows >= 0] = index.vectors[rows[rows >= 0]]
        unknown = [texts[position] for position in np.flatnonzero(rows < 0).tolist()]
        if unknown:
            vectors[rows < 0] = self._fitting(self.vectors.of(unknown, _TEXTS), index)
        return vectors

    def _fitting(self, vectors: NDArray[np.float32], index: _Index) -> NDArray[np.float32]:
        """The vectors of queries, if they can be compared with those of the index."""
        self.vectors.check_size(vectors.shape[1], index.vectors.shape[1], "the index")
        return vectors


def _rows_of(hashes: NDArray[np.uint64], index: _Index) -> NDArray[np.int32]:
    """The row of each text [n] in the collection, by their hashes; -1 if it isn't there."""
    places = np.minimum(np.searchsorted(index.hashes, hashes), len(index.hashes) - 1)
    return np.where(index.hashes[places] == hashes, index.hash_rows[places], np.int32(-1))


def nearest(
    vectors: NDArray[np.float32],
    empty: NDArray[np.integer[Any]],
    queries: NDArray[np.float32],
    k: int,
    exclude: Sequence[Sequence[int]] | None = None,
) -> Hits:
    """The best k vectors for each query, scored as `DenseRetriever` says; exact.

    Args:
        vectors: [n, d], of length 1.
        empty: rows that are never hits, ascending: texts without tokens.
        queries: [q, d], of length 1; one of length 0 has no hits.
        k: hits of a query at most.
        exclude: rows that each query must not find.
    """
    hits = Hits.none(len(queries), k)
    for first in range(0, len(queries), _QUERIES):
        part = slice(first, first + _QUERIES)
        keys = _best_keys(vectors, empty, queries[part], k, None if exclude is None else exclude[part])
        scores = (keys >> 32).astype(np.int32).view(np.float32)
        found = (scores > 0) & queries[part].any(axis=1, keepdims=True)
        width = keys.shape[1]
        hits.rows[part, :width] = np.where(found, _LAST_ROW - (keys & _LAST_ROW), -1)
        hits.scores[part, :width] = np.where(found, scores, 0)
    return hits


# A hit as one number: the bits of its score (a positive float's order is that of its bits), and below them
# its row counted from the end. Larger is better, and no two are equal.
_LAST_ROW = np.int64(2**32 - 1)


def _best_keys(
    vectors: NDArray[np.float32],
    empty: NDArray[np.integer[Any]],
    queries: NDArray[np.float32],
    k: int,
    exclude: Sequence[Sequence[int]] | None,
) -> NDArray[np.int64]:
    """The largest k keys for each query, descending [queries, <= k]; the score of a row left out is 0."""
    best = np.empty((len(queries), 0), np.int64)
    for low in range(0, len(vectors), _ROWS):
        high = min(low + _ROWS, len(vectors))
        scores = queries @ vectors[low:high].T
        scores += 1
        scores /= 2
        np.clip(scores, LEAST_SCORE, 1, out=scores)
        first, last = np.searchsorted(empty, [low, high])
        scores[:, empty[first:last] - low] = 0
        for query, rows in enumerate(exclude or ()):
            left_out = np.asarray(rows, np.int64)
            scores[query, left_out[(left_out >= low) & (left_out < high)] - low] = 0
        keys = scores.view(np.int32).astype(np.int64) << 32
        keys += _LAST_ROW - np.arange(low, high)
        best = np.concatenate([best, keys], axis=1)
        if best.shape[1] > k:
            best = np.partition(best, best.shape[1] - k, axis=1)[:, best.shape[1] - k :]
    return -np.sort(-best, axis=1)
