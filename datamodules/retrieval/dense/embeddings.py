"""Embeddings of a table: a folder with its rows and their vectors, float32 [n, d], of length 1 (0 without words)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import ArrayWriter, map_array
from datamodules.core.errors import InputError, excerpt
from datamodules.core.shards import Shard
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows

#: The encoder of a model; `document` for a model that encodes queries and documents alike.
TextSide: TypeAlias = Literal["document", "query"]

_ADVICE = "run `zoo encode` again"
#: Rows of parts that are in memory together.
_ROWS = 1 << 14


@dataclass(frozen=True)
class Embeddings:
    """The rows of a table with their vectors, which are memory-mapped.

    `zoo encode` writes them. `zoo index --embeddings` searches them without their encoder.
    """

    folder: Path
    rows: Rows
    vectors: NDArray[np.float32]
    #: `encoder`, `contents` (its `vectors_fingerprint`), `side`, and `options` of its `DenseRanking`.
    made_by: PlainDict

    @classmethod
    def write(
        cls, folder: Path, rows: Rows, blocks: Iterable[NDArray[np.float32]], size: int, made_by: PlainDict
    ) -> None:
        """Write rows and their vectors, in blocks [.., size], unless that is done; other embeddings are replaced."""
        described = {"contents": made_by["contents"], "side": made_by["side"], **made_by["options"]}
        fingerprint = storage.fingerprint_of({"rows": rows.fingerprint, **described})
        with storage.named_disk_errors(folder, "--output"):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with storage.lock(folder):
            check_output(folder)
            with suppress(InputError):  # damaged embeddings and those of another table or model are replaced
                if storage.is_whole(folder, fingerprint):
                    return
            with (
                storage.new_folder(folder, fingerprint, kind="embeddings", **made_by) as partial,
                storage.named_disk_errors(folder, "--output"),
            ):
                rows.save(partial / "rows.arrow")
                with ArrayWriter(partial / "vectors.npy", np.float32, (size,)) as writer:
                    for vectors in blocks:
                        if not np.isfinite(vectors).all():
                            problem = "its vectors are not finite; use another one"
                            raise InputError(f"{made_by['encoder']}: {problem}")
                        writer.write(vectors)
                if writer.length != len(rows):
                    raise ValueError(f"{writer.length} vectors for {len(rows)} rows")

    @classmethod
    def open(cls, folder: Path) -> Embeddings:
        """Map the files that `write` wrote; raise an `InputError` if they are missing or damaged."""
        manifest = storage.check_folder(folder, contents=True, advice=_ADVICE)
        if manifest.get("kind") != "embeddings":
            raise InputError(f"{folder}: contains no embeddings; name a folder that `zoo encode` made")
        rows = Rows.load(folder / "rows.arrow", str(folder))
        made_by = {name: manifest[name] for name in ("encoder", "contents", "side", "options")}
        return cls(folder, rows, map_array(folder / "vectors.npy", np.float32, dimensions=2), made_by)

    @property
    def size(self) -> int:
        """The length d of a vector."""
        return int(self.vectors.shape[1])


def join_parts(folder: Path) -> Path:
    """Join the folders `folder.03-of-16` that `zoo encode --shard` made, unless that is done; return the folder."""
    name = re.compile(re.escape(folder.name) + r"\.\d+-of-\d+")
    parts = sorted(each for each in folder.parent.glob("*-of-*") if name.fullmatch(each.name))
    if folder.exists() or not parts:
        return folder
    count = int(parts[0].name.rpartition("-of-")[2])
    expected = [Shard(number, count).part_of(folder) for number in range(1, count + 1)]
    if parts != expected:
        different = ", ".join(sorted({part.name for part in parts} ^ {part.name for part in expected}))
        raise InputError(f"{folder}: missing parts, or parts of other shards: {excerpt(different)}")
    opened = [Embeddings.open(part) for part in parts]
    made_by = opened[0].made_by
    for part in opened:
        if part.made_by != made_by:
            raise InputError(f"{part.folder}: made by another encoder than {parts[0]}; {_ADVICE}")
    blocks = (part.vectors[low : low + _ROWS] for part in opened for low in range(0, len(part.rows), _ROWS))
    Embeddings.write(folder, Rows.concat([part.rows for part in opened]), blocks, opened[0].size, made_by)
    return folder


def check_output(folder: Path) -> None:
    """Raise an `InputError` for a file or a folder with other contents than embeddings: it would be replaced."""
    if not folder.name:
        raise InputError(f"--output {folder}: names no folder; name one")
    manifest = folder / storage.MANIFEST
    if manifest.exists():
        is_replaceable = '"kind": "embeddings"' in manifest.read_text(errors="replace")
    else:
        is_replaceable = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_replaceable:
        raise InputError(f"--output {folder}: exists and contains no embeddings; name another folder")
