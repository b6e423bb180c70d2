"""The versions of a memory: for each version a folder with all its rows; and their deletion, for good.

The rows are in Arrow files. A version shares the files of unchanged rows with the version before, by hard links, so a
change of one row of a million writes a few megabytes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datamodules.core import storage
from datamodules.core.arrays import RowLookup, damaged, map_array
from datamodules.core.errors import DamagedError, InputError, name_some
from datamodules.core.ragged import offsets_of
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import BLOCK, Rows
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.dense.vector_store import MOST_PARTS, VectorStore
from datamodules.retrieval.folding import fold_hashes, text_hashes

POINTER = "memory.json"
#: The pointer of a memory that is in a model folder, next to the memory.
STATE = "state.json"

# The fewest rows of a file that is shared, unless it is the last one.
_FEWEST_SHARED = BLOCK // 2
_LONGEST_NOTE = 500
_MADE = {"time", "change", "note"}
#: Changes other keys of a pointer together with the version.
PointerChange: TypeAlias = Callable[[PlainDict], PlainDict]
_KINDS: dict[str, type] = dict(version=int, first=int, began_with=str, retriever=dict, ranking=dict)


def entry_of(memory: Path, number: int) -> PlainDict:
    """Return `version`, `rows`, `time` (UTC, ISO 8601), `change` (such as `+3`) and `note` of a version."""
    folder = folder_of(memory, number)
    with _advising(memory, number):
        manifest = storage.check_folder(folder)
        made, rows = manifest.get("made"), manifest.get("rows")
        if not isinstance(rows, dict) or not isinstance(made, dict) or made.keys() != _MADE:
            raise damaged(folder / storage.MANIFEST, "does not describe the version")
    return {"version": number, "rows": sum(rows.values()), **made}


def describe_change(change: str, note: str | None) -> PlainDict:
    """Return the entry that a manifest keeps of a change that is made now; raise an `InputError` for a long note."""
    if note is not None and len(note) > _LONGEST_NOTE:
        raise InputError(f"--note: has {len(note):,} characters; shorten it to {_LONGEST_NOTE}")
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"time": time, "change": change, "note": note or None}


@dataclass(frozen=True)
class Version:
    """A version of a memory: its rows and the lookup of their texts, mapped from a folder that never changes.

    `FolderMemory` writes one for each change. Searches, edits and the audit read the rows of the open one.
    """

    folder: Path
    number: int
    rows: Rows
    #: the fingerprint of the rows.
    fingerprint: str
    #: the rows by the hashes of their folded texts.
    lookup: RowLookup
    #: the number of rows of each file, in order.
    files: dict[str, int]
    #: int32 [n]: the version in which each row was written.
    written_in: NDArray[np.int32]

    @classmethod
    def open(
        cls, memory: Path, number: int, contents: bool = False, fingerprint: str | None = None
    ) -> Version:
        """Map a version; raise an `InputError` if it is missing or damaged, or has another fingerprint.

        `contents` compares the checksums of the files.
        """
        folder = folder_of(memory, number)
        with _advising(memory, number):
            manifest = storage.check_folder(folder, fingerprint, contents=contents)
            files = manifest.get("rows")
            if not (isinstance(files, dict) and files and files.keys() <= manifest["files"].keys()):
                raise damaged(folder / storage.MANIFEST, "does not name the files of the rows")
            parts = [Rows.load(folder / name) for name in files]
            if [len(part) for part in parts] != list(files.values()):
                raise damaged(folder, "has another number of rows")
            rows = Rows(Rows.concat(parts).table, str(memory))
            lookup = RowLookup.open(folder, len(rows))
            written_in = map_array(folder / "written_in.npy", np.int32, length=len(rows))
        return cls(folder, number, rows, str(manifest["fingerprint"]), lookup, files, written_in)

    def index_of(self, retriever: Retriever) -> tuple[str, Path]:
        """Return fingerprint and folder of an index; the members of a fused retriever append a number to its name."""
        return index_of(self.folder, self.fingerprint, retriever)

    def row_of_ids(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the row with each id, -1 where there is none."""
        wanted, own = pa.array(ids, pa.string()), self.rows.table.column("id")
        # The memory may have a million ids, of which few are wanted: only those are numbered.
        rows = np.flatnonzero(pc.is_in(own, value_set=wanted).to_numpy()).astype(np.int32)
        matches = pc.index_in(wanted, value_set=own.take(pa.array(rows)).combine_chunks())
        return np.append(rows, np.int32(-1))[pc.fill_null(matches, -1).to_numpy()]

    def rows_with_ids(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row with each id, int64 [n]; raise an `InputError` for unknown ids, and for an id given twice."""
        rows = self.row_of_ids(ids).astype(np.int64)
        if unknown := [ids[position] for position in np.flatnonzero(rows < 0).tolist()]:
            why = "removed rows, and those drawn for validation, are not in a memory"
            raise InputError(f"{self.folder.parent}: has no row with the id {name_some(unknown)}; {why}")
        if len(np.unique(rows)) < len(rows):
            twice = [each for each, count in Counter(ids).items() if count > 1]
            raise InputError(f"{self.folder.parent}: the id {name_some(twice)} is given more than once")
        return rows

    def excluded_rows(
        self, texts: Sequence[str], own_ids: Sequence[str] | None = None
    ) -> list[NDArray[np.int32]]:
        """Return the rows that are duplicates of each text or, with own ids, of its own row; see `Memory.search`."""
        exclude = self.lookup.all_rows(fold_hashes(texts))
        if own_ids is not None:
            own_rows = self.row_of_ids(own_ids)
            queries = np.flatnonzero(own_rows >= 0)
            own_texts = self.rows.texts.take(own_rows[queries])
            own_duplicates = self.lookup.all_rows(fold_hashes(own_texts))
            for query, rows in zip(queries.tolist(), own_duplicates, strict=True):
                exclude[query] = np.union1d(exclude[query], rows).astype(np.int32)
        return exclude

    def rows_since(self, number: int) -> NDArray[np.int64]:
        """Return the rows that were added or corrected after a version, ascending."""
        return np.flatnonzero(self.written_in > number)

    @classmethod
    def write_first(cls, memory: Path, rows: Rows) -> Version:
        """Write and map version 1."""
        hashes, written_in = fold_hashes(rows.texts), np.ones(len(rows), np.int32)
        made, files = describe_change("built", None), _new_files(1, 0, len(rows))
        return _write(memory, 1, rows, RowLookup.of(hashes), written_in, files, None, made)

    def write_next(self, rows: Rows, known: NDArray[np.int64], change: str, note: str | None) -> Version:
        """Write and map the next version; `known` [n] has the row of each row in this one, -1 for a new row."""
        made = describe_change(change, note)
        number, is_known = self.number + 1, known >= 0
        written_in = np.where(is_known, self.written_in[known], number).astype(np.int32)
        new = np.flatnonzero(~is_known)
        hashes = self.lookup.keys_by_row()[known]
        hashes[new] = fold_hashes(rows.texts.take(new))
        row_now = np.full(len(self.rows), -1)
        row_now[known[is_known]] = np.flatnonzero(is_known)
        kept = row_now[self.lookup.rows]
        lookup = RowLookup.of(hashes, np.concatenate([kept[kept >= 0], new]))
        files = _files(number, self.files, known)
        return _write(self.folder.parent, number, rows, lookup, written_in, files, self.folder, made)

    def write_again(self, number: int, note: str | None) -> Version:
        """Write and map a version with the same files and indexes as this one, by links where possible."""
        memory, made = self.folder.parent, describe_change(f"back to {self.number}", note)
        target, facts = folder_of(memory, number), {"rows": self.files, "made": made}
        with storage.new_folder(target, self.fingerprint, like=self.folder, **facts) as partial:
            link, hidden = storage.link, shutil.ignore_patterns(".*")
            shutil.copytree(self.folder, partial, ignore=hidden, copy_function=link, dirs_exist_ok=True)
            # Unlinked: to write into it would change the manifest of this version.
            (partial / storage.MANIFEST).unlink()
            for path in partial.rglob("*"):
                storage.sync(path)
        return Version.open(memory, number)


def _write(
    memory: Path,
    number: int,
    rows: Rows,
    lookup: RowLookup,
    written_in: NDArray[np.int32],
    files: dict[str, range],
    before: Path | None,
    made: PlainDict,
) -> Version:
    facts = {"rows": {name: len(span) for name, span in files.items()}, "made": made}
    with storage.new_folder(folder_of(memory, number), rows.fingerprint, like=before, **facts) as partial:
        for name, span in files.items():
            if before is not None and (before / name).exists():
                storage.link(before / name, partial / name)
            else:
                # Copied: Arrow writes some bytes behind the rows of a slice, too, which may be removed ones.
                new = rows.part(span)
                new.select(np.arange(len(new))).save(partial / name)
        np.save(partial / "written_in.npy", written_in)
        lookup.save(partial)
    return Version.open(memory, number)


def folder_of(memory: Path, number: int) -> Path:
    """Return the folder of a version."""
    return memory / f"version-{number}"


def index_of(parent: Path, rows: str, retriever: Retriever) -> tuple[str, Path]:
    """Return fingerprint and folder of a retriever's index of the rows with this fingerprint, below a folder."""
    fingerprint = storage.fingerprint_of({"rows": rows, **retriever.describe_ranking()})
    return fingerprint, parent / f"index-{fingerprint[:16]}"


def delete_unused(memory: Path, state: PlainDict, retriever: Retriever) -> None:
    """Delete the folders of killed changes, and of versions that are not kept, with their indexes."""
    storage.delete_leftovers(memory)
    kept = {folder_of(memory, number) for number in range(state["first"], state["version"] + 1)}
    leftovers = set(memory.glob("version-*")) - kept
    # Other memories may begin with the same rows: they share an index on a server.
    shared = {state["began_with"], *(_rows_fingerprint(folder) for folder in kept if leftovers)}
    unfinished = folder_of(memory, state["version"] + 1)
    rows_of = {folder: _rows_fingerprint(folder) for folder in sorted(leftovers)}
    for folder, rows in rows_of.items():
        if rows is not None and rows not in shared and retriever.is_on_server:
            if folder == unfinished:
                # A server completes the index of a killed change when it is made again; another one deletes it.
                folder.rename(folder_of(memory, 0))
                continue
            if rows != rows_of.get(unfinished):  # else the same change was killed twice
                fingerprint, index = index_of(folder, rows, retriever)
                retriever.delete(index, fingerprint)
        storage.delete(folder)


def delete_removed(memory: Path, state: PlainDict, retriever: Retriever) -> None:
    """Delete what may contain removed texts: indexes of other rankings, and the vectors of these texts."""
    stores = list(memory.glob("vectors-*"))
    hashes = []
    for number in range(state["first"], state["version"] + 1):
        version = Version.open(memory, number)
        own = version.index_of(retriever)[1].name
        for index in version.folder.glob("index-*"):
            if not index.name.startswith(own):
                storage.delete(index)
        if stores:
            hashes.append(text_hashes(version.rows.texts))
    for store in stores:
        older = np.setdiff1d(np.concatenate(hashes), hashes[-1])
        VectorStore(store).keep(np.concatenate([hashes[-1], older]))


def merge_vectors(memory: Path) -> None:
    """Merge small parts of stored vectors: each takes time and open files, and each change of the memory adds one."""
    for store in memory.glob("vectors-*"):
        if len([*store.glob("part-*")]) > MOST_PARTS:
            VectorStore(store).merge()


def _rows_fingerprint(version: Path) -> str | None:
    """Return the fingerprint of a version's rows; None if its folder is not whole."""
    try:
        return str(storage.check_folder(version)["fingerprint"])
    except DamagedError:
        return None


def is_of_model(folder: Path) -> bool:
    """Return True for a memory in a model folder."""
    # Other programs write a model.json, too, perhaps next to a memory of its own.
    is_next_to_model = not (folder / POINTER).exists() and (folder.parent / "model.json").exists()
    return folder.name == "memory" and is_next_to_model


def pointer_of(folder: Path) -> Path:
    """Return the file that names the current version: in the folder, or next to a memory that is in a model folder."""
    return folder.parent / STATE if is_of_model(folder) else folder / POINTER


def read_pointer(folder: Path) -> PlainDict:
    """Return the state of a memory from its pointer; raise an `InputError` if the folder is no memory.

    The pointer is a JSON file with the key `memory`. `version` is the current one, `first` the oldest kept,
    `began_with` the first rows' fingerprint, `retriever` and `ranking` the index's.
    """
    path = pointer_of(folder)
    if not (path.exists() and folder.is_dir()):
        advice = "make one with `zoo index`, or name another"
        raise InputError(f"{folder}: no memory here (it has no {path.name}); {advice}")
    storage.check_inside(folder)
    advice = "restore it from a backup or, if the memory has not grown, build it again with `zoo index`"
    state: PlainDict = storage.read_checked(path, advice).get("memory") or {}
    is_whole = all(isinstance(state.get(name), kind) for name, kind in _KINDS.items())
    if not (is_whole and 1 <= state["first"] <= state["version"]):
        raise DamagedError(f"{path}: damaged; {advice}")
    return state


def open_kept(folder: Path, state: PlainDict, number: int) -> Version:
    """Open a version of a memory in this state; an `InputError` if it is missing, damaged, or was deleted."""
    # The rows of a version beyond the current one are left over from an interrupted change.
    if not 1 <= number <= state["version"]:
        raise InputError(f"{folder}: has no version {number}; the current one is {state['version']}")
    if number < state["first"]:
        problem = f"version {number} was deleted by `zoo memory compact`"
        raise InputError(f"{folder}: {problem}; the oldest is {state['first']}")
    return Version.open(folder, number, contents=True)


def write_pointer(folder: Path, state: PlainDict, also: PointerChange = dict) -> None:
    """Switch a memory to a version in one atomic step; other keys of the pointer are kept, or changed by `also`."""
    with storage.named_disk_errors(folder):
        storage.update(pointer_of(folder), lambda values: also({**values, "memory": state}))


def contents_of_memory(folder: str) -> PlainDict:
    """Identify rows and ranking of a memory folder by its manifests, without reading the rows or an index."""
    files = [pointer_of(Path(folder)), *sorted(Path(folder).glob(f"version-*/{storage.MANIFEST}"))]
    return {str(path.relative_to(folder)): storage.contents_of(path) for path in files}


def difference(first: Version, second: Version) -> tuple[Rows, Rows, Rows, Rows]:
    """Compare two versions of a memory by the ids of their rows.

    Returns:
        The rows that the second one adds; those that it lacks; those of the first one that have another label or text
        in the second one; and these in the second one, in the same order.
    """
    place = first.row_of_ids(second.rows.ids)
    common = np.flatnonzero(place >= 0)
    removed = np.delete(np.arange(len(first.rows)), place[common])
    before, after = first.rows.select(place[common]), second.rows.select(common)
    changed = np.flatnonzero(np.logical_or(*differences(before, after)))
    added = second.rows.select(np.flatnonzero(place < 0))
    return added, first.rows.select(removed), before.select(changed), after.select(changed)


def differences(before: Rows, after: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of n rows have another text, and which have another label: bool [n] each."""
    columns = [(before.table.column(name), after.table.column(name)) for name in ("text", "label")]
    # A row without a label, of which `not_equal` makes null, differs from one that has a label.
    text, label = (
        pc.coalesce(pc.not_equal(*pair), pc.xor(*map(pc.is_null, pair))).to_numpy() for pair in columns
    )
    return text, label


def _files(number: int, before: dict[str, int], known: NDArray[np.int64]) -> dict[str, range]:
    """Divide the rows of a version into files: unchanged ones of the version before, and new ones."""
    names, starts = list(before), offsets_of(list(before.values()))
    files: dict[str, range] = {}
    done, total = 0, len(known)
    place = np.full(starts[-1] + 1, -1)  # of each row of the version before; row -1 is the appended one
    place[known] = np.arange(total)
    places = sorted((int(place[start]), file) for file, start in enumerate(starts[:-1].tolist()))
    for position, file in places:
        if position < 0:
            continue
        first, last = int(starts[file]), int(starts[file + 1])
        end = position + last - first
        # Short runs are written together with the next file: small files would become many.
        is_short = 0 < position - done < _FEWEST_SHARED or (last - first < _FEWEST_SHARED and end < total)
        if not is_short and np.array_equal(known[position:end], np.arange(first, last)):
            files |= _new_files(number, done, position, len(files))
            files[names[file]] = range(position, end)
            done = end
    return files | _new_files(number, done, total, len(files))


def _new_files(number: int, start: int, end: int, named: int = 0) -> dict[str, range]:
    """Divide consecutive rows into files of equal size, each of at most `BLOCK` rows."""
    edges = np.linspace(start, end, 1 - (start - end) // BLOCK).astype(int).tolist()
    spans = enumerate(map(range, edges[:-1], edges[1:]), named)
    return {f"rows-{number}-{position}.arrow": span for position, span in spans}


@contextmanager
def _advising(memory: Path, number: int) -> Iterator[None]:
    """Give another advice for a damaged version than to build it again: its rows may be stored nowhere else."""
    try:
        yield
    except InputError as error:
        advice = f", or build the memory again in another folder than {memory}"
        if folder_of(memory, number - 1).is_dir():
            advice = f"; until then use an earlier version (--memory_version {number - 1})"
        message = str(error).replace(storage.REBUILD, f"restore it from a backup{advice}")
        raise type(error)(message) from error
