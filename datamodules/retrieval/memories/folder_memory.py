"""A memory in a folder: built once, searched, and grown version by version."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core import storage
from datamodules.core.arrays import RowLookup, damaged
from datamodules.core.errors import DamagedError, InputError, excerpt
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Collection, Retriever
from datamodules.retrieval.folding import fold_hashes
from datamodules.retrieval.memories.memory import Addition, Memory, Neighbors, UnknownLabels

log = logging.getLogger(__name__)

POINTER = "memory.json"


class FolderMemory(Memory):
    """A memory whose rows are in a local folder; their index is in the same folder or in Elasticsearch.

    `rows-<n>` has the rows that are new in version n, and the hashes of all rows up to there. A version never changes.
    """

    def __init__(self, folder: Path, retriever: Retriever, version: int | None = None) -> None:
        """Open a version, None opens the current one; raise an `InputError` if it is missing or damaged."""
        self.folder = folder
        self.retriever = retriever
        current = read_pointer(folder)["version"]
        version = current if version is None else version
        # The rows of a version beyond the current one are left over from an interrupted addition.
        if not 1 <= version <= current:
            raise InputError(f"{folder}: has no version {version}; the current one is {current}")
        self._open(version)

    def _open(self, version: int) -> None:
        self.rows, rows_fingerprint = _load_rows(self.folder, version, contents=True)
        self.version = version
        self.fingerprint = _fingerprint(rows_fingerprint, self.retriever)
        self._lookup = _open_lookup(self.folder, version, len(self.rows))
        index_folder = _index_folder(self.folder, self.fingerprint)
        try:
            self.retriever.open(index_folder, self.fingerprint)
        except DamagedError as damage:
            log.warning("%s", str(damage).replace(storage.REBUILD, "the index is rebuilt"))
            self.retriever.index(_collection(self.rows, self.fingerprint), index_folder)

    @classmethod
    def build(cls, rows: Rows, retriever: Retriever, folder: Path, progress: bool = True) -> FolderMemory:
        """Write and index the rows, unless that is done, and open version 1, which has these rows."""
        if len(rows) == 0:
            raise InputError(f"{rows.source}: a memory needs at least one row")
        _check_ids(rows)
        with storage.lock(folder):
            if folder.exists():
                storage.check_inside(folder)
            current = _built_version(folder, rows.fingerprint)
            if current == 0:
                _write_rows(folder, 1, rows, rows.fingerprint, fold_hashes(rows.texts))
                current = 1
            elif (folder / POINTER).exists():
                log_other_ranking(folder, retriever, folder)
            for version in sorted({1, current}):
                version_rows, rows_fingerprint = _load_rows(folder, version)
                fingerprint = _fingerprint(rows_fingerprint, retriever)
                index_folder = _index_folder(folder, fingerprint)
                # A whole index is not built again: another process may have opened it.
                if not storage.is_whole(index_folder, fingerprint):
                    retriever.index(_collection(version_rows, fingerprint), index_folder, progress)
            # The ranking is stored, too, since an encoder's files may be replaced by others.
            described = {"retriever": retriever.describe(), "ranking": retriever.ranking.describe()}
            write_pointer(folder, {"version": current, **described})
        return cls(folder, retriever, version=1)

    def copy_to(self, folder: Path) -> FolderMemory:
        """Copy the memory with all versions, by links where possible, and open it; an index on a server is shared."""
        with storage.lock(folder), storage.lock(self.folder):
            if not folder.exists():
                partial = folder.with_name(f".{folder.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                with storage.named_disk_errors(folder, "the run's folder"):
                    hidden = shutil.ignore_patterns(".*")
                    shutil.copytree(self.folder, partial, copy_function=_link, ignore=hidden)
                    for path in (partial, *partial.rglob("*")):
                        storage.sync(path)
                    partial.rename(folder)
                    storage.sync(folder.parent)
        return type(self)(folder, self.retriever)

    def __len__(self) -> int:
        return len(self.rows)

    @override
    def add(
        self,
        rows: Rows,
        labels: Sequence[str] | None = None,
        unknown_labels: UnknownLabels = "refuse",
        keep_ids: bool = False,
        progress: bool = True,
    ) -> Addition:
        if len(rows) == 0:
            raise InputError(f"{rows.source}: no rows to add")
        # The rows follow those of the current version, whichever version is open. Until the pointer is switched, the
        # current version stays current, even if the process is killed.
        with storage.lock(self.folder):
            pointer = read_pointer(self.folder)
            if self.version != int(pointer["version"]):
                self._open(int(pointer["version"]))
            self._clear_leftovers()
            hashes = fold_hashes(rows.texts)
            may_be_added = self._check_labels(rows, labels, unknown_labels)
            positions, addition = self._select_new(rows, hashes, may_be_added)
            if addition.added == 0:
                return addition
            new = rows.select(positions)
            if not keep_ids:
                ids = [f"{addition.version}:{position}" for position in positions]
                new = Rows.from_lists(new.texts, new.table.column("label").to_pylist(), ids, rows.source)
            grown = Rows(Rows.concat([self.rows, new]).table, rows.source)
            _check_ids(grown)
            all_hashes = np.concatenate([self._lookup.keys_by_row(), hashes[positions]])
            _write_rows(self.folder, addition.version, new, grown.fingerprint, all_hashes)
            self._add_to_index(grown, progress)
            write_pointer(self.folder, {**pointer, "version": addition.version})
            self._open(addition.version)
        return addition

    def _add_to_index(self, grown: Rows, progress: bool) -> None:
        """Build the index of the grown rows; the open index stays usable if that fails."""
        fingerprint = _fingerprint(grown.fingerprint, self.retriever)
        index_folder = _index_folder(self.folder, fingerprint)
        try:
            self.retriever.add(_collection(grown, fingerprint), index_folder, progress)
        except BaseException:
            with suppress(InputError):  # the server may be unreachable; the first error is the one to report
                self._open(self.version)
            raise

    def _select_new(
        self, rows: Rows, hashes: NDArray[np.uint64], may_be_added: NDArray[np.bool_]
    ) -> tuple[list[int], Addition]:
        """Return the positions of the rows to add; `hashes` [n] are those of their texts."""
        labels = rows.table.column("label").to_pylist()
        labels_of: dict[int, set[str | None]] = {}
        positions: list[int] = []
        duplicates = relabelled = 0
        matches = self._lookup.all_rows(hashes)
        for position in np.flatnonzero(may_be_added).tolist():
            text_hash, label = int(hashes[position]), labels[position]
            if text_hash not in labels_of:
                labels_of[text_hash] = {self.rows.label(int(row)) for row in matches[position]}
            if label in labels_of[text_hash]:
                duplicates += 1
                continue
            relabelled += bool(labels_of[text_hash])
            labels_of[text_hash].add(label)
            positions.append(position)
        added, unknown = len(positions), int((~may_be_added).sum())
        version = self.version + bool(added)
        return positions, Addition(version, len(self) + added, added, duplicates, relabelled, unknown)

    def _check_labels(
        self, rows: Rows, allowed: Sequence[str] | None, unknown_labels: UnknownLabels
    ) -> NDArray[np.bool_]:
        """Return which rows have a label that may be added, bool [n]; refuse rows that don't fit."""
        labels = rows.table.column("label")
        memory_has_labels = bool(self.labels())
        unfit = np.flatnonzero(labels.is_null().to_numpy() == memory_has_labels)
        if len(unfit):
            problem = "has a label, but the memory has none; omit the labels"
            if memory_has_labels:
                problem = "has no label; give it one"
            raise InputError(f"{_name_row(rows, int(unfit[0]))} {problem}")
        if allowed is None or not memory_has_labels:
            return np.ones(len(rows), bool)
        known: NDArray[np.bool_] = pc.is_in(labels, pa.array(allowed, pa.string())).to_numpy()
        if unknown_labels == "refuse" and not known.all():
            position = int(np.argmin(known))
            raise InputError(
                f"{_name_row(rows, position)} has the label {labels[position].as_py()!r}, which the model cannot"
                " predict; correct it, skip all such rows with --unknown_labels skip, or have a MemoryEnsemble predict"
                " it by its memory with --new_labels true"
            )
        return known

    def _clear_leftovers(self) -> None:
        """Delete the files of a killed addition, whose rows were never part of the memory."""
        for partial in self.folder.glob(".*.partial"):
            shutil.rmtree(partial)
        unfinished = _rows_folder(self.folder, self.version + 1)
        if unfinished.exists():
            fingerprint = _fingerprint(storage.check_folder(unfinished)["fingerprint"], self.retriever)
            # The indexes of a fused retriever have names that begin with the given name.
            for index in self.folder.glob(f"{_index_folder(self.folder, fingerprint).name}*"):
                shutil.rmtree(index)
            shutil.rmtree(unfinished)

    def versions(self) -> list[tuple[int, int]]:
        """Return number and size (in rows) of all versions up to the open one, oldest first."""
        folders = [(number, _rows_folder(self.folder, number)) for number in range(1, self.version + 1)]
        return [(number, int(storage.check_folder(folder)["rows"])) for number, folder in folders]

    @override
    def labels(self) -> list[str]:
        return self.rows.distinct_labels()

    @override
    def location(self) -> str:
        return str(self.folder)

    def excluded_rows(
        self, texts: Sequence[str], own_ids: Sequence[str] | None = None
    ) -> list[NDArray[np.int32]]:
        """Return the rows that are duplicates of each text or, with own ids, of its own row; see `Memory.search`."""
        exclude = self._lookup.all_rows(fold_hashes(texts))
        if own_ids is not None:
            own_rows = self._rows_with_ids(own_ids)
            queries = np.flatnonzero(own_rows >= 0)
            own_texts = self.rows.texts.take(own_rows[queries])
            own_duplicates = self._lookup.all_rows(fold_hashes(own_texts))
            for query, rows in zip(queries.tolist(), own_duplicates, strict=True):
                exclude[query] = np.union1d(exclude[query], rows).astype(np.int32)
        return exclude

    @override
    def contains_duplicates_of(
        self, texts: Rows, same_table: bool, neighbors: Neighbors
    ) -> NDArray[np.bool_]:
        # Exact: the hashes of all rows are compared, not only those of the neighbors.
        held: NDArray[np.bool_] = self._lookup.first_rows(fold_hashes(texts.texts)) >= 0
        return held | (self._rows_with_ids(texts.ids) >= 0) if same_table else held

    def _rows_with_ids(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the row with each id, -1 where there is none."""
        wanted = pa.array(ids, pa.string())
        matches = pc.index_in(wanted, value_set=self.rows.table.column("id").combine_chunks())
        rows: NDArray[np.int32] = pc.fill_null(matches, -1).to_numpy()
        return rows

    @override
    def search(
        self,
        texts: Sequence[str],
        k: int,
        exclude_duplicates: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        exclude = self.excluded_rows(texts, own_ids) if exclude_duplicates else None
        hits = self.retriever.search(texts, k, exclude)
        rows, inverse = np.unique(hits.rows, return_inverse=True)
        if rows.max(initial=-1) >= len(self.rows):
            raise damaged(self.folder, f"its index has a row {rows.max()}, the memory {len(self.rows)} rows")
        start = int(rows.size > 0 and rows[0] == -1)
        return Neighbors(
            rows=(inverse.reshape(hits.rows.shape) - start).astype(np.int32),
            scores=hits.scores,
            memories=self.rows.select(rows[start:]),
        )


def _fingerprint(rows_fingerprint: str, retriever: Retriever) -> str:
    return storage.fingerprint_of({"rows": rows_fingerprint, **retriever.ranking.describe()})


def check_ranking(folder: Path, ranking: PlainDict | None, retriever: Retriever) -> None:
    """Raise an `InputError` if a memory was built for a ranking that differs from the retriever's."""
    now = retriever.ranking.describe()
    if ranking is not None and ranking != now:
        change = _describe_change(ranking, now)
        raise InputError(f"{folder}: {change}; make them equal or build another memory with `zoo index`")


def log_other_ranking(folder: Path, retriever: Retriever, new_folder: Path) -> None:
    """Log that the index of another ranking is kept, e.g. that of an encoder before it was tuned again."""
    ranking, now = read_pointer(folder)["ranking"], retriever.ranking.describe()
    if ranking != now:
        change = _describe_change(ranking, now)
        log.info("%s: %s; it is kept, and the new one is built next to it, in %s", folder, change, new_folder)


def _describe_change(old: PlainDict, new: PlainDict) -> str:
    """Describe the difference between the ranking of an index and that of a retriever."""
    if {**old, "encoder": None} == {**new, "encoder": None}:
        return f"its index has vectors of another encoder: {old['encoder']}, now {new['encoder']}"
    return f"the memory was built for {old}, but the retriever is set to {new}"


def _collection(rows: Rows, fingerprint: str) -> Collection:
    return Collection(rows.texts, fingerprint, rows.ids, rows.table.column("label").to_pylist())


def _name_row(rows: Rows, position: int) -> str:
    """Return the location of a row for messages: its number counts from 1, without the header."""
    return f"{rows.source}: row {position + 1} ({excerpt(rows.texts[position], 40)!r})"


def _check_ids(rows: Rows) -> None:
    """Refuse rows with equal ids: neighbors are identified by their ids."""
    counts = pc.value_counts(rows.table.column("id"))
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise InputError(
            f"{rows.source}: {repeated[0]['counts'].as_py()} rows have the id"
            f" {repeated[0]['values'].as_py()!r}; give each row of a memory its own, or name no id column"
        )


def read_pointer(folder: Path) -> PlainDict:
    """Return `version`, `retriever` and `ranking` of a memory; raise an `InputError` if the folder is no memory."""
    path = folder / POINTER
    if not path.exists():
        raise InputError(
            f"{folder}: no memory here (it has no {POINTER}); build one with `zoo index` or name another"
            " with --data.memory"
        )
    storage.check_inside(folder)
    advice = "restore it from a backup or, if the memory has not grown, build it again with `zoo index`"
    pointer = storage.read_checked(path, advice)
    kinds = {"version": int, "retriever": dict, "ranking": dict}
    if not all(isinstance(pointer.get(name), kind) for name, kind in kinds.items()):
        raise DamagedError(f"{path}: damaged; {advice}")
    return pointer


def first_rows(folder: Path) -> str:
    """Return the fingerprint of the rows that a memory began with; raise an `InputError` if it is damaged."""
    read_pointer(folder)
    return str(storage.check_folder(_rows_folder(folder, 1), advice=_lost_rows(folder, 1))["fingerprint"])


def write_pointer(folder: Path, pointer: PlainDict) -> None:
    """Switch the memory to a version in one atomic step."""
    with storage.named_disk_errors(folder):
        storage.write_json(folder / POINTER, storage.with_checksum(pointer))


def contents_of_memory(folder: str) -> PlainDict:
    """Identify rows and ranking of a memory folder by its manifests, without reading the rows or an index."""
    files = [Path(folder, POINTER), *sorted(Path(folder).glob(f"rows-*/{storage.MANIFEST}"))]
    return {str(path.relative_to(folder)): storage.contents_of(path) for path in files}


def _built_version(folder: Path, fingerprint: str) -> int:
    """Return the current version of a memory that began with these rows; 0 if its first rows must be written."""
    first = _rows_folder(folder, 1)
    if not first.exists():
        return 0
    try:
        storage.check_folder(first, fingerprint, contents=True, advice=_lost_rows(folder, 1))
        return int(read_pointer(folder)["version"]) if (folder / POINTER).exists() else 1
    except DamagedError:
        if _rows_folder(folder, 2).exists():
            raise
        return 0


def _lost_rows(folder: Path, version: int) -> str:
    """Return the advice for damaged rows, which are stored nowhere else."""
    if version == 1:
        return f"restore it from a backup, or build the memory again in another folder than {folder}"
    return f"restore it from a backup; until then use an earlier version (--memory_version {version - 1})"


def _load_rows(folder: Path, version: int, contents: bool = False) -> tuple[Rows, str]:
    """Return all rows of a version, and their fingerprint; `contents` compares their checksums."""
    parts: list[Rows] = []
    for number in range(1, version + 1):
        part, advice = _rows_folder(folder, number), _lost_rows(folder, number)
        manifest = storage.check_folder(part, contents=contents, advice=advice)
        with _advising(advice):
            parts.append(Rows.load(part / "rows.arrow"))
        if manifest.get("rows") != sum(map(len, parts)):
            raise DamagedError(f"{part}: damaged (has another number of rows); {advice}")
    return Rows(Rows.concat(parts).table, str(folder)), str(manifest["fingerprint"])


def _open_lookup(folder: Path, version: int, rows: int) -> RowLookup:
    """Map the hashes of all rows of a version."""
    part = _rows_folder(folder, version)
    with _advising(_lost_rows(folder, version)):
        lookup = RowLookup.open(part)
        if len(lookup.rows) != rows:
            raise damaged(part / "hashes.npy", f"has {len(lookup.rows)} hashes of {rows} rows")
    return lookup


@contextmanager
def _advising(advice: str) -> Iterator[None]:
    """Give another advice for damaged files than to build them again."""
    try:
        yield
    except DamagedError as damage:
        raise DamagedError(str(damage).replace(storage.REBUILD, advice)) from damage


def _write_rows(
    folder: Path, version: int, new: Rows, fingerprint: str, all_hashes: NDArray[np.uint64]
) -> None:
    """Write the new rows of a version; fingerprint and hashes are those of all its rows."""
    with storage.new_folder(_rows_folder(folder, version), fingerprint, rows=len(all_hashes)) as partial:
        new.save(partial / "rows.arrow")
        RowLookup.of(all_hashes).save(partial)


def _rows_folder(folder: Path, version: int) -> Path:
    return folder / f"rows-{version}"


def _index_folder(folder: Path, fingerprint: str) -> Path:
    return folder / f"index-{fingerprint[:16]}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)
