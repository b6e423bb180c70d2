"""Embeddings of a table that were made once: a folder with its rows, and a vector for each of them.

    rows.arrow      ids, texts and labels, an Arrow file (`Rows.load`)
    vectors.npy     float32 [n, d], the rows' vectors in the same order, of length 1; 0 for a text without words
    manifest.json   sizes and checksums of both, and what made the vectors

Like every folder of the project it is whole or absent, see `datamodules.core.storage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.core.storage import (
    MANIFEST,
    check_folder,
    fingerprint_of,
    is_whole,
    lock,
    named_disk_errors,
    new_folder,
)
from datamodules.corpora.rows import Rows
from datamodules.retrieval.folding import text_hashes

#: Which of a model's encoders made the vectors; of a model that has one for all texts, it is `document`.
Side: TypeAlias = Literal["document", "query"]

_ADVICE = "run `zoo encode` again"


@dataclass(frozen=True)
class MadeBy:
    """What made vectors.

    Attributes:
        encoder: a checkpoint, by the place where it was.
        contents: identifies what the checkpoint held, see `DenseRanking.describe`.
        side: of the model.
    """

    encoder: str
    contents: str
    side: Side


@dataclass(frozen=True)
class Embeddings:
    """The rows of a table with their vectors, which stay on the disk."""

    folder: Path
    rows: Rows
    vectors: NDArray[np.float32]
    made_by: MadeBy

    @classmethod
    def write(
        cls, folder: Path, rows: Rows, blocks: Iterable[NDArray[np.float32]], size: int, made_by: MadeBy
    ) -> Embeddings:
        """Write a folder, unless it holds just this already.

        Args:
            folder: its place; only embeddings that are there are replaced.
            rows: n rows.
            blocks: their vectors [.., size], one block after another; not asked for if nothing is to be done.
            size: d.
            made_by: what makes the vectors.

        Raises:
            InputError: something else is there, the disk is full, or a vector is no finite number.
        """
        fingerprint = fingerprint_of(
            {"rows": rows.fingerprint, "contents": made_by.contents, "side": made_by.side}
        )
        with named_disk_errors(folder, "--output"):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with lock(folder):
            check_place(folder)
            if not _is_done(folder, fingerprint):
                with (
                    new_folder(folder, fingerprint, kind="embeddings", **vars(made_by)) as partial,
                    named_disk_errors(folder, "--output"),
                ):
                    rows.save(partial / "rows.arrow")
                    _write_vectors(partial / "vectors.npy", blocks, (len(rows), size), made_by.encoder)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Embeddings:
        """Map what `write` wrote.

        Raises:
            InputError: there is no such folder, or it is damaged.
        """
        manifest = check_folder(folder, contents=True, advice=_ADVICE)
        if manifest.get("kind") != "embeddings":
            raise InputError(f"{folder}: holds no embeddings; name a folder that `zoo encode` made")
        rows = Rows.load(folder / "rows.arrow")
        vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        made_by = MadeBy(manifest["encoder"], manifest["contents"], manifest["side"])
        return cls(folder, Rows(rows.table, str(folder)), np.asarray(vectors), made_by)

    @property
    def size(self) -> int:
        """d, numbers in a vector."""
        return int(self.vectors.shape[1])

    @cached_property
    def _order(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The hashes of the texts, ascending, and their rows."""
        hashes = text_hashes(self.rows.texts)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def rows_of(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """A row with each text [n]; -1 where there is none."""
        hashes, order = self._order
        wanted = text_hashes(texts)
        if len(hashes) == 0:
            return np.full(len(wanted), -1)
        places = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
        return np.where(hashes[places] == wanted, order[places], -1)


def check_place(folder: Path) -> None:
    """Refuse a place where something else than embeddings is: it would be replaced.

    Raises:
        InputError: a file or another folder is there.
    """
    if not folder.name:
        raise InputError(f"--output {folder}: names no folder; name one")
    manifest = folder / MANIFEST
    if manifest.exists():
        ours = '"kind": "embeddings"' in manifest.read_text(errors="replace")
    else:
        ours = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not ours:
        raise InputError(f"--output {folder}: is there and holds no embeddings; name another folder")


def _is_done(folder: Path, fingerprint: str) -> bool:
    """Whether just these embeddings are there; those of another table or model are replaced."""
    try:
        return is_whole(folder, fingerprint)
    except InputError:
        return False


def _write_vectors(
    path: Path, blocks: Iterable[NDArray[np.float32]], shape: tuple[int, int], encoder: str
) -> None:
    """Write an .npy file block by block; no more than a block is in memory."""
    written = 0
    with path.open("wb") as file:
        header: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for vectors in blocks:
            if not np.isfinite(vectors).all():
                raise InputError(
                    f"{encoder}: its vectors are no finite numbers: its training diverged, or its weights are"
                    " damaged; use another checkpoint"
                )
            np.ascontiguousarray(vectors, "<f4").tofile(file)
            written += len(vectors)
    if written != shape[0]:
        raise ValueError(f"{written} vectors for {shape[0]} rows")
