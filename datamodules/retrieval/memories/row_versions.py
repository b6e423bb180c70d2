"""The rows of a memory on the disk, version by version.

`memory.json` points to the current version. The folder `rows-<n>` has the rows that were written in version n. A
version is a choice of the rows that were written up to it, in an order: an added row follows all others, a corrected
one (written again) stands where the old one stood, and a removed one is not chosen. After a compaction, the folders
of the kept versions are called `rows-<n>.<generation>`, and the first of them has all rows of its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import RowLookup, check_numbers, damaged, map_array
from datamodules.core.errors import DamagedError, InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows

POINTER = "memory.json"
#: Beginning of the names of folders with the vectors of the rows by one encoder, see `EncodedMemory`.
ENCODINGS = "encodings-"

# With more interruptions than this, copied rows are faster than parts of tables.
_MOST_PARTS = 1024
_KINDS: dict[str, type] = {
    "version": int,
    "first": int,
    "generation": int,
    "began_with": str,
    "retriever": dict,
    "ranking": dict,
}


class StoredRows(NamedTuple):
    """One version of the rows."""

    version: int
    #: the rows of the version, n.
    rows: Rows
    fingerprint: str
    #: all rows that were written up to the version, one after the other.
    written: Rows
    #: int64 [n]: the position of each row in `written`.
    order: NDArray[np.int64]
    #: the rows by the hashes of their texts.
    lookup: RowLookup


def read_pointer(folder: Path, pointer: Path | None = None) -> PlainDict:
    """Return the state of a memory from its pointer; raise an `InputError` if the folder is no memory.

    The pointer is a JSON file with the key `memory`, by default `memory.json` in the folder. `version` is the current
    one, `first` the oldest that is kept, `generation` the number of compactions, `began_with` the fingerprint of the
    rows of version 1, `retriever` and `ranking` those of the index.
    """
    path = pointer or folder / POINTER
    if not path.exists():
        raise InputError(
            f"{folder}: no memory here (it has no {path.name}); build one with `zoo index` or name another"
            " with --data.memory"
        )
    storage.check_inside(folder)
    advice = "restore it from a backup or, if the memory has not grown, build it again with `zoo index`"
    state: PlainDict = storage.read_checked(path, advice).get("memory") or {}
    is_whole = all(isinstance(state.get(name), kind) for name, kind in _KINDS.items())
    if not (is_whole and 1 <= state["first"] <= state["version"] and state["generation"] >= 0):
        raise DamagedError(f"{path}: damaged; {advice}")
    return state


def write_pointer(folder: Path, state: PlainDict, pointer: Path | None = None) -> None:
    """Switch a memory to a version in one atomic step; other keys of the pointer are kept."""
    path = pointer or folder / POINTER
    with storage.named_disk_errors(folder):
        storage.set_key(path, "memory", state)


def first_rows(folder: Path) -> str:
    """Return the fingerprint of the rows that a memory began with; raise an `InputError` if it is damaged."""
    return str(read_pointer(folder)["began_with"])


def contents_of_memory(folder: str) -> PlainDict:
    """Identify rows and ranking of a memory folder by its manifests, without reading the rows or an index."""
    files = [Path(folder, POINTER), *sorted(Path(folder).glob(f"rows-*/{storage.MANIFEST}"))]
    return {str(path.relative_to(folder)): storage.contents_of(path) for path in files}


def rows_folder(folder: Path, version: int, generation: int) -> Path:
    """Return the folder of the rows that were written in a version."""
    return folder / (f"rows-{version}" if generation == 0 else f"rows-{version}.{generation}")


def folders(folder: Path, pointer: PlainDict, version: int | None = None) -> dict[int, Path]:
    """Return version -> folder of its rows, of the versions up to a given one, None = the current one."""
    last = pointer["version"] if version is None else version
    parts: dict[int, Path] = {}
    for number in range(pointer["first"], last + 1):
        part = rows_folder(folder, number, pointer["generation"])
        # Not left to the readers: a pointer may name a billion versions.
        if not part.is_dir():
            raise DamagedError(f"{part}: does not exist; {lost_rows(part, number, pointer)}")
        parts[number] = part
    return parts


def lost_rows(part: Path, version: int, pointer: PlainDict) -> str:
    """Return the advice for damaged rows, which are stored nowhere else."""
    if version == pointer["first"]:
        return f"restore it from a backup, or build the memory again in another folder than {part.parent}"
    return f"restore it from a backup; until then use an earlier version (--memory_version {version - 1})"


def load(folder: Path, pointer: PlainDict, version: int, contents: bool = False) -> StoredRows:
    """Map a version of the rows; `contents` compares their checksums."""
    parts: list[Rows] = []
    for number, part in folders(folder, pointer, version).items():
        advice = lost_rows(part, number, pointer)
        manifest = storage.check_folder(part, contents=contents, advice=advice)
        with _advising(advice):
            parts.append(Rows.load(part / "rows.arrow"))
        if manifest.get("written") != len(parts[-1]):
            raise DamagedError(f"{part}: damaged (has another number of rows); {advice}")
    written = Rows(Rows.concat(parts).table, str(folder))
    with _advising(advice):
        order = read_order(part, len(written))
        lookup = RowLookup.open(part)
        if not manifest.get("rows") == len(order) == len(lookup.rows):
            raise damaged(part / "hashes.npy", f"has {len(lookup.rows)} hashes of {len(order)} rows")
    rows = in_order(written, order)
    return StoredRows(version, rows, str(manifest["fingerprint"]), written, order, lookup)


def read_order(part: Path, written: int) -> NDArray[np.int64]:
    """Return the position of each row of a version among the rows that were written up to it, int64 [n]."""
    path = part / "order.npy"
    if not path.exists():
        return np.arange(written)
    order = map_array(path, np.int64)
    check_numbers(path, order, written)
    return order


def write(
    part: Path,
    new: Rows,
    rows: Rows,
    order: NDArray[np.int64],
    written: int,
    lookup: RowLookup,
    versions: NDArray[np.int64] | None = None,
) -> None:
    """Write the new rows of a version, and the order [n] of all its rows, with the lookup of their texts.

    `written` rows were written up to this version, the new ones included. `versions` are those in which the new rows
    were written first; None = this one.
    """
    facts = {"rows": len(order), "written": len(new)}
    with storage.new_folder(part, rows.fingerprint, **facts) as partial:
        new.save(partial / "rows.arrow")
        if len(order) != written or (order != np.arange(written)).any():
            np.save(partial / "order.npy", order)
        if versions is not None:
            np.save(partial / "versions.npy", versions)
        lookup.save(partial)


def written_in(part: Path) -> int:
    """Return the number of rows in a folder."""
    return int(storage.check_folder(part)["written"])


def versions_of_rows(folder: Path, pointer: PlainDict, stored: StoredRows) -> NDArray[np.int64]:
    """Return the version in which each row was written, int64 [n]."""
    numbers = []
    for number, part in folders(folder, pointer, stored.version).items():
        count = written_in(part)
        known = part / "versions.npy"
        own = map_array(known, np.int64) if known.exists() else np.full(count, number)
        if len(own) != count:
            raise damaged(known, f"{len(own)} numbers of {count} rows")
        numbers.append(own)
    versions: NDArray[np.int64] = np.concatenate(numbers)[stored.order]
    return versions


def in_order(written: Rows, order: NDArray[np.int64]) -> Rows:
    """Return rows by their positions [n]; long runs of consecutive rows are not copied."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(order) != 1) + 1])
    if len(order) == 0 or len(starts) > _MOST_PARTS:
        return written.select(order)
    ends = np.append(starts[1:], len(order))
    parts = [
        Rows(written.table.slice(int(order[start]), int(end - start)), written.source)
        for start, end in zip(starts, ends, strict=True)
    ]
    return Rows(Rows.concat(parts).table, written.source)


def vectors_fingerprint(part: Path, encoder: str) -> str:
    """Return what identifies the vectors, by an encoder with this fingerprint, of the rows in a folder."""
    return storage.fingerprint_of(
        {"rows": str(storage.check_folder(part)["fingerprint"]), "encoder": encoder}
    )


@contextmanager
def _advising(advice: str) -> Iterator[None]:
    """Give another advice for damaged files than to build them again."""
    try:
        yield
    except DamagedError as damage:
        raise DamagedError(str(damage).replace(storage.REBUILD, advice)) from damage
