"""The deletion of old versions of a memory, for good."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter, map_array
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval.memories import row_versions
from datamodules.retrieval.memories.row_versions import ENCODINGS, vectors_fingerprint

_BLOCK = 4096


def rewrite(folder: Path, pointer: PlainDict, first: int) -> None:
    """Write the rows of the versions from `first` on, and their encodings, to folders of the next generation."""
    generation = pointer["generation"] + 1
    base = row_versions.load(folder, pointer, first)
    last = row_versions.load(folder, pointer, pointer["version"])
    #: of the rows written in the old folders, those that are written again: the base's, and all later ones.
    kept = np.concatenate([base.order, np.arange(len(base.written), len(last.written))])
    place = np.full(len(last.written), -1)
    place[kept] = np.arange(len(kept))
    for version, old in row_versions.folders(folder, {**pointer, "first": first}).items():
        stored = base if version == first else row_versions.load(folder, pointer, version)
        # Copied: Arrow writes some bytes behind the rows of a slice, too.
        new = base.written.select(base.order) if version == first else Rows.load(old / "rows.arrow")
        order = place[stored.order]
        written = len(base.order) + len(stored.written) - len(base.written)
        part = row_versions.rows_folder(folder, version, generation)
        versions = row_versions.versions_of_rows(folder, pointer, base) if version == first else None
        row_versions.write(part, new, stored.rows, order, written, stored.lookup, versions)
    for encodings in sorted(folder.glob(f"{ENCODINGS}*")):
        _rewrite_encodings(folder, encodings, pointer, first, base.order)


def _rewrite_encodings(
    folder: Path, encodings: Path, pointer: PlainDict, first: int, order: NDArray[np.int64]
) -> None:
    """Write the vectors of one encoder for the new folders, as far as they exist; others are encoded on use."""
    old = row_versions.folders(folder, pointer)
    for version in range(first, pointer["version"] + 1):
        # The first new folder has the rows of all old ones up to it, in an order.
        versions = range(pointer["first"], first + 1) if version == first else [version]
        parts = [encodings / old[each].name for each in versions if row_versions.written_in(old[each])]
        if not parts or not all((part / storage.MANIFEST).exists() for part in parts):
            continue
        encoder = str(storage.check_folder(parts[-1], contents=True)["encoder"])
        vectors = np.concatenate(
            [map_array(part / "vectors.npy", np.float32, dimensions=2) for part in parts]
        )
        chosen = order if version == first else np.arange(len(vectors))
        part = row_versions.rows_folder(folder, version, pointer["generation"] + 1)
        _write_vectors(encodings / part.name, part, encoder, vectors, chosen)


def _write_vectors(
    target: Path, part: Path, encoder: str, vectors: NDArray[np.float32], rows: NDArray[np.int64]
) -> None:
    """Write some vectors as those of the rows in the folder `part` of a memory."""
    fingerprint = vectors_fingerprint(part, encoder)
    with (
        storage.lock(target),
        storage.new_folder(target, fingerprint, encoder=encoder) as partial,
        ArrayWriter(partial / "vectors.npy", np.float32, vectors.shape[1:]) as writer,
    ):
        for start in range(0, len(rows), _BLOCK):
            writer.write(vectors[rows[start : start + _BLOCK]])
