"""Vectors of texts in the cache: no command encodes a text again that another one encoded with the same encoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core.arrays import RowLookup, map_array
from datamodules.core.errors import InputError
from datamodules.core.storage import build_folder, cache_folder, fingerprint_of, is_whole
from datamodules.retrieval.folding import text_hashes

log = logging.getLogger(__name__)

#: The smallest number of new texts that are stored: each edit of a memory would make a folder.
FEWEST = 64
#: The largest table whose vectors are stored: those of a larger one would fill the disk a second time.
MOST = 1 << 20


class _Part(NamedTuple):
    lookup: RowLookup
    #: float32 [n, d].
    vectors: NDArray[np.float32]


class VectorCache:
    """The vectors that one encoder, with its options, made of documents: a folder for each block of texts."""

    def __init__(self, encoder: str) -> None:
        self.encoder = encoder  #: `DenseRanking.vectors_fingerprint`.
        self.folder = cache_folder(None) / f"vectors-{encoder[:16]}"
        self._parts = [
            self._open(path) for path in sorted(self.folder.glob("part-*")) if self._is_whole(path)
        ]
        self._added: list[_Part] = []

    def use_added(self) -> None:
        """Look up in the parts that were added since, too.

        Within one table no block looks up in those of earlier blocks: a look-up takes time for each part, and the
        vectors would depend on which blocks one process encodes.
        """
        self._parts += self._added
        self._added = []

    @property
    def size(self) -> int | None:
        """The length d of a vector; None if there is none yet."""
        return self._parts[0].vectors.shape[1] if self._parts else None

    def vectors_of(
        self, texts: Sequence[str], encode: Callable[[list[str]], NDArray[np.float32]]
    ) -> tuple[NDArray[np.float32], int]:
        """Return the vectors of distinct texts [n, d], and the number of texts that were encoded just now."""
        hashes = text_hashes(texts)
        found = [(part, part.lookup.first_rows(hashes)) for part in self._parts]
        unknown = np.all([rows < 0 for _, rows in found], axis=0) if found else np.ones(len(texts), bool)
        new = [texts[row] for row in np.flatnonzero(unknown).tolist()]
        encoded = encode(new) if new else np.empty((0, self.size or 0), np.float32)
        vectors = np.empty((len(texts), encoded.shape[1]), np.float32)
        for part, rows in found:
            vectors[rows >= 0] = part.vectors[rows[rows >= 0]]
        vectors[unknown] = encoded
        if len(new) >= FEWEST:
            self._add(hashes[unknown], encoded)
        return vectors, len(new)

    def _add(self, hashes: NDArray[np.uint64], vectors: NDArray[np.float32]) -> None:
        def save(partial: Path) -> None:
            RowLookup.of(hashes).save(partial)
            np.save(partial / "vectors.npy", vectors)

        path = self.folder / f"part-{fingerprint_of({'texts': hashes.tobytes().hex()})[:16]}"
        try:
            build_folder(path, self._fingerprint(path), save)
        except InputError as error:  # a full or read-only disk; the vectors themselves are there
            log.warning("vectors are not kept for other commands: %s", error)
            return
        self._added.append(self._open(path))

    def _fingerprint(self, path: Path) -> str:
        return fingerprint_of({"encoder": self.encoder, "part": path.name})

    def _is_whole(self, path: Path) -> bool:
        return is_whole(path, self._fingerprint(path))

    def _open(self, path: Path) -> _Part:
        return _Part(RowLookup.open(path), map_array(path / "vectors.npy", np.float32, dimensions=2))
