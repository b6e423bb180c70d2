"""A memory in a folder: built once, searched, and changed version by version."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core import storage
from datamodules.core.arrays import RowLookup, damaged
from datamodules.core.errors import DamagedError, InputError
from datamodules.core.origin import sign
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import SCHEMA, Rows, Texts
from datamodules.retrieval.base import Collection, Retriever
from datamodules.retrieval.dense.vector_store import VectorStore
from datamodules.retrieval.folding import fold_hashes, text_hashes
from datamodules.retrieval.memories.changes import (
    check_ids,
    check_kept_labels,
    check_labels,
    conflicts,
    corrections,
    name_some,
    select_new,
)
from datamodules.retrieval.memories.memory import Addition, Change, Memory, Neighbors, UnknownLabels
from datamodules.retrieval.memories.versions import (
    POINTER,
    Version,
    folder_of,
    in_order,
    read_pointer,
    write_pointer,
)

log = logging.getLogger(__name__)


class FolderMemory(Memory):
    """A memory whose rows are in a local folder; their index is in the same folder or in Elasticsearch.

    `build` makes one of a table, and a model searches it. Each change makes a new version (see `Version`), which ranks
    like a memory that was built of its rows; a version never changes.
    """

    def __init__(
        self, folder: Path, retriever: Retriever, version: int | None = None, pointer: Path | None = None
    ) -> None:
        """Open a version, None opens the current one; raise an `InputError` if it is missing or damaged.

        `pointer` is the JSON file that names the current version in its key `memory`; None = `memory.json` in the
        folder. Other keys of this file are kept.
        """
        self.folder = folder
        self.retriever = retriever
        self.pointer = pointer or folder / POINTER
        state = read_pointer(folder, pointer)
        version = state["version"] if version is None else version
        # The rows of a version beyond the current one are left over from an interrupted change.
        if not 1 <= version <= state["version"]:
            raise InputError(f"{folder}: has no version {version}; the current one is {state['version']}")
        if version < state["first"]:
            raise InputError(
                f"{folder}: version {version} was deleted by `zoo memory compact`; the oldest is {state['first']}"
            )
        self._open(state, version)

    def _open(self, state: PlainDict, version: int) -> None:
        self._state, self._opened = state, Version.open(self.folder, version, contents=True)
        self.rows, self.version = self._opened.rows, version
        self.fingerprint = _fingerprint(self._opened.fingerprint, self.retriever)
        index_folder = _index_folder(self.folder, version, self.fingerprint)
        try:
            self.retriever.open(index_folder, self.fingerprint)
        except DamagedError as damage:
            if not index_folder.exists() and state["ranking"] != self.retriever.ranking.describe():
                raise  # a memory of another ranking
            log.warning("%s", str(damage).replace(storage.REBUILD, "the index is rebuilt"))
            self.retriever.index(_collection(self.rows, self.fingerprint), index_folder)

    @classmethod
    def build(cls, rows: Rows, retriever: Retriever, folder: Path, progress: bool = True) -> FolderMemory:
        """Write and index the rows, unless that is done, and open version 1, which has these rows."""
        if len(rows) == 0:
            raise InputError(f"{rows.source}: a memory needs at least one row")
        check_ids(rows)
        with storage.lock(folder):
            if folder.exists():
                storage.check_inside(folder)
            state = _built_state(folder, rows.fingerprint)
            if state is None:
                Version.write(folder, 1, rows, RowLookup.of(fold_hashes(rows.texts)))
                (folder / POINTER).unlink(missing_ok=True)  # damaged
                state = {"version": 1, "first": 1, "began_with": rows.fingerprint}
            elif "ranking" in state:
                log_other_ranking(folder, retriever, folder)
            for number in sorted({1, int(state["version"])}):
                version = Version.open(folder, number)
                fingerprint = _fingerprint(version.fingerprint, retriever)
                index_folder = _index_folder(folder, number, fingerprint)
                # A whole index is not built again: another process may have opened it.
                if not storage.is_whole(index_folder, fingerprint):
                    retriever.index(_collection(version.rows, fingerprint), index_folder, progress)
            # The ranking is stored, too, since an encoder's files may be replaced by others.
            described = {"retriever": retriever.describe(), "ranking": retriever.ranking.describe()}
            signature = sign({"retriever": described["retriever"]})
            write_pointer(folder, {**state, **described, "signature": signature})
        return cls(folder, retriever, version=1)

    def copy_to(self, folder: Path, pointer: Path | None = None) -> FolderMemory:
        """Copy the memory with all versions, by links where possible, and open it; an index on a server is shared.

        `pointer` is that of the copy, see `__init__`.
        """
        with storage.lock(folder), storage.lock(self.folder):
            if not folder.exists():
                partial = folder.with_name(f".{folder.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                with storage.named_disk_errors(folder, "the run's folder"):
                    hidden = shutil.ignore_patterns(".*", POINTER)
                    shutil.copytree(self.folder, partial, copy_function=storage.link, ignore=hidden)
                    write_pointer(partial, read_pointer(self.folder, self.pointer), pointer)
                    for path in (partial, *partial.rglob("*")):
                        storage.sync(path)
                    partial.rename(folder)
                    storage.sync(folder.parent)
        return type(self)(folder, self.retriever, pointer=pointer)

    def __len__(self) -> int:
        return len(self.rows)

    # --- changes ---

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
        with self._changing():
            hashes = fold_hashes(rows.texts)
            may_be_added = check_labels(rows, bool(self.labels()), labels, unknown_labels)
            chosen = select_new(self.rows, self._opened.lookup, rows, hashes, may_be_added)
            added, version = len(chosen.positions), self.version + bool(chosen.positions)
            addition = Addition(
                version,
                len(self) + added,
                added,
                chosen.duplicates,
                chosen.conflicting,
                int((~may_be_added).sum()),
            )
            if added == 0:
                return addition
            new = rows.select(chosen.positions)
            if not keep_ids:
                ids = [f"{version}:{position}" for position in chosen.positions]
                new = Rows.from_lists(new.texts, new.table.column("label").to_pylist(), ids, rows.source)
            check_ids(Rows(Rows.concat([self.rows, new]).table, rows.source))
            self._write_version(new, np.arange(len(self) + added), progress)
        return addition

    @override
    def remove(self, ids: Sequence[str], allow_empty_class: bool = False, progress: bool = True) -> Change:
        with self._changing():
            removed = self.rows_with_ids(ids)
            kept = np.delete(np.arange(len(self)), removed)
            if len(removed) == 0:
                return Change(self.version, len(self), 0)
            if len(kept) == 0:
                raise InputError(f"{self.folder}: these are all rows of the memory, which needs at least one")
            check_kept_labels(self.rows, removed, SCHEMA.empty_table(), allow_empty_class)
            self._write_version(Rows(SCHEMA.empty_table(), ""), kept, progress)
        return Change(self.version, len(self), len(removed))

    @override
    def replace(
        self,
        rows: Rows,
        labels: Sequence[str] | None = None,
        allow_empty_class: bool = False,
        progress: bool = True,
    ) -> Change:
        with self._changing():
            places = self.rows_with_ids(rows.ids)
            check_labels(rows, bool(self.labels()), labels)
            old, new = self.rows.select(places).table, rows.table
            differ = [
                pc.not_equal(old.column(name), new.column(name)).fill_null(False).to_numpy()
                for name in ("text", "label")
            ]
            changed = np.flatnonzero(differ[0] | differ[1])
            if len(changed) == 0:
                return Change(self.version, len(self), 0)
            new = rows.select(changed)
            check_kept_labels(self.rows, places[changed], new.table, allow_empty_class)
            order = np.arange(len(self))
            order[places[changed]] = len(self) + np.arange(len(changed))
            self._write_version(new, order, progress)
        return Change(self.version, len(self), len(changed))

    @override
    def relabel(
        self,
        labels: Mapping[str, str],
        allowed: Sequence[str] | None = None,
        allow_empty_class: bool = False,
        progress: bool = True,
    ) -> Change:
        ids = list(labels)
        texts = self.rows.texts.take(self.rows_with_ids(ids))
        rows = Rows.from_lists(texts, labels.values(), ids, str(self.folder))
        return self.replace(rows, allowed, allow_empty_class, progress)

    @override
    def compact(self, keep: int = 1) -> int:
        if keep < 1:
            raise InputError(f"keep={keep}: keep at least 1 version")
        with self._changing() as before:
            first = max(before["first"], self.version - keep + 1)
            if first > before["first"]:
                self._switch({**before, "first": first})
                self._clear_leftovers()
            versions = [Version.open(self.folder, number) for number in range(first, self.version + 1)]
            for version in versions:  # indexes of other rankings may contain removed texts, too
                own = _index_folder(
                    self.folder, version.number, _fingerprint(version.fingerprint, self.retriever)
                )
                for index in version.folder.glob("index-*"):
                    if not index.name.startswith(own.name):
                        storage.delete(index)
            stores = list(self.folder.glob("vectors-*"))
            hashes = [text_hashes(version.rows.texts) for version in versions if stores]
            for store in stores:
                VectorStore(self.folder, store.name.removeprefix("vectors-")).keep(np.concatenate(hashes))
        return int(first - before["first"])

    @contextmanager
    def _changing(self) -> Iterator[PlainDict]:
        """Reserve the memory, open its current version, and yield its state.

        Until the pointer is switched, the current version stays current, even if the process is killed.
        """
        with storage.lock(self.folder):
            state = read_pointer(self.folder, self.pointer)
            if self._state != state or self.version != state["version"]:
                self._open(state, state["version"])
            self._clear_leftovers()
            yield state

    def _switch(self, state: PlainDict) -> None:
        write_pointer(self.folder, state, self.pointer)
        self._state = state

    def _write_version(self, new: Rows, order: NDArray[np.int64], progress: bool) -> None:
        """Write and open the next version, whose rows have these positions among the current and the new ones."""
        before, number = self._opened, self.version + 1
        rows = in_order(Rows(Rows.concat([self.rows, new]).table, str(self.folder)), order)
        known = np.where(order < len(self), order, -1)
        if len(new) == 0:
            lookup = before.lookup.keep(known)
        else:
            hashes = np.concatenate([before.lookup.keys_by_row(), fold_hashes(new.texts)])
            lookup = RowLookup.of(hashes[order])
        Version.write(self.folder, number, rows, lookup, before, known)
        fingerprint = _fingerprint(rows.fingerprint, self.retriever)
        index_folder = _index_folder(self.folder, number, fingerprint)
        try:
            self.retriever.update(_collection(rows, fingerprint), known, index_folder, progress)
        except BaseException:
            with suppress(InputError):  # the server may be unreachable; the first error is the one to report
                self._open(self._state, self.version)
            raise
        self._switch({**self._state, "version": number})
        self._open(self._state, number)

    def _clear_leftovers(self) -> None:
        """Delete folders that are no part of the memory: of killed changes, and of deleted versions."""
        for hidden in [*self.folder.glob(".*.partial"), *self.folder.glob(".*.deleted")]:
            storage.delete(hidden)
        kept = {folder_of(self.folder, number) for number in self._numbers(self._state["version"])}
        leftovers = set(self.folder.glob("version-*")) - kept
        # Other memories may begin with the same rows: they share an index on a server.
        shared = {self._state["began_with"], *(_rows_fingerprint(folder) for folder in kept if leftovers)}
        for folder in leftovers:
            rows = _rows_fingerprint(folder)
            # A server completes the index of a killed change when the change is made again.
            if (
                rows is not None
                and rows not in shared
                and folder != folder_of(self.folder, self._state["version"] + 1)
            ):
                fingerprint = _fingerprint(rows, self.retriever)
                self.retriever.delete(folder / _index_name(fingerprint), fingerprint)
            storage.delete(folder)

    # --- contents ---

    def _numbers(self, last: int) -> range:
        """Return the numbers of the kept versions up to a given one."""
        return range(self._state["first"], last + 1)

    def versions(self) -> list[tuple[int, int]]:
        """Return number and size (in rows) of all kept versions up to the open one, oldest first."""
        sizes = [Version.size(self.folder, number) for number in self._numbers(self.version)]
        return list(zip(self._numbers(self.version), sizes, strict=True))

    def rows_since(self, version: int) -> NDArray[np.int64]:
        """Return the rows that were added or corrected after a version, ascending."""
        return np.flatnonzero(self._opened.written_in > version)

    def removed_ids(self) -> set[str]:
        """Return the ids of the rows that the open version lacks and an earlier kept one has."""
        earlier = (Version.open(self.folder, number).rows.ids for number in self._numbers(self.version - 1))
        return set().union(*earlier) - set(self.rows.ids)

    def corrections(self, rows: Rows) -> dict[str, str]:
        """Return id and new label of each row whose text is that of a row with another label; see `relabel`."""
        return corrections(self.rows, self._opened.lookup, rows)

    def conflicts(self) -> list[list[int]]:
        """Return the rows of each text that has several labels, duplicates included."""
        return conflicts(self.rows, self._opened.lookup)

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
        lookup = self._opened.lookup
        exclude = lookup.all_rows(fold_hashes(texts))
        if own_ids is not None:
            own_rows = self._rows_or_none(own_ids)
            queries = np.flatnonzero(own_rows >= 0)
            own_texts = self.rows.texts.take(own_rows[queries])
            own_duplicates = lookup.all_rows(fold_hashes(own_texts))
            for query, rows in zip(queries.tolist(), own_duplicates, strict=True):
                exclude[query] = np.union1d(exclude[query], rows).astype(np.int32)
        return exclude

    @override
    def contains_duplicates_of(
        self, texts: Rows, same_table: bool, neighbors: Neighbors
    ) -> NDArray[np.bool_]:
        # Exact: the hashes of all rows are compared, not only those of the neighbors.
        held: NDArray[np.bool_] = self._opened.lookup.first_rows(fold_hashes(texts.texts)) >= 0
        return held | (self._rows_or_none(texts.ids) >= 0) if same_table else held

    def _rows_or_none(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the row with each id, -1 where there is none."""
        wanted = pa.array(ids, pa.string())
        matches = pc.index_in(wanted, value_set=self.rows.table.column("id").combine_chunks())
        rows: NDArray[np.int32] = pc.fill_null(matches, -1).to_numpy()
        return rows

    def rows_with_ids(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row with each id, int64 [n]; raise an `InputError` for unknown ids, and for an id given twice."""
        wanted = pa.array(ids, pa.string())
        # The memory may have a million ids, of which few are wanted.
        found = np.flatnonzero(pc.is_in(self.rows.table.column("id"), value_set=wanted).to_numpy())
        row_of = dict(zip(self.rows.select(found).ids, found.tolist(), strict=True))
        if unknown := [each for each in ids if each not in row_of]:
            raise InputError(f"{self.folder}: has no row with the id {name_some(unknown)}")
        if len(row_of) < len(ids):
            twice = [each for each, count in Counter(ids).items() if count > 1]
            raise InputError(f"{self.folder}: the id {name_some(twice)} is given more than once")
        return np.array([row_of[each] for each in ids], np.int64)

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
    ids, labels = (Texts(rows.table.column(name)) for name in ("id", "label"))
    return Collection(rows.texts, fingerprint, ids, labels)


def _built_state(folder: Path, fingerprint: str) -> PlainDict | None:
    """Return the state of a memory that began with these rows; None if its first version must be written."""
    state: PlainDict = {"version": 1, "first": 1, "began_with": fingerprint}
    has_pointer = (folder / POINTER).exists()
    try:
        if has_pointer:
            state = read_pointer(folder)
        if state["first"] > 1:
            raise InputError(
                f"{folder}: its first version was deleted by `zoo memory compact`; build it in another folder"
            )
        if has_pointer or folder_of(folder, 1).exists():
            Version.open(folder, 1, contents=True, fingerprint=fingerprint)
            return state
    except DamagedError:
        if folder_of(folder, 2).exists():
            raise
    return None


def _rows_fingerprint(version: Path) -> str | None:
    """Return the fingerprint of a version's rows; None if its folder is not whole."""
    try:
        return str(storage.check_folder(version)["fingerprint"])
    except DamagedError:
        return None


def _index_name(fingerprint: str) -> str:
    return f"index-{fingerprint[:16]}"


def _index_folder(memory: Path, version: int, fingerprint: str) -> Path:
    return folder_of(memory, version) / _index_name(fingerprint)
