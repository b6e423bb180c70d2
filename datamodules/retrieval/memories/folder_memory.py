"""A memory in a folder: built once, searched, and changed version by version."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core import storage
from datamodules.core.arrays import damaged
from datamodules.core.errors import DamagedError, InputError
from datamodules.core.types import PlainDict
from datamodules.corpora.rows import SCHEMA, Rows
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.folding import fold_hashes
from datamodules.retrieval.memories import versions
from datamodules.retrieval.memories.changes import check_ids, check_labels, corrections, select_new
from datamodules.retrieval.memories.memory import Addition, Change, Memory, Neighbors
from datamodules.retrieval.memories.versions import PointerChange, Version

log = logging.getLogger(__name__)


class FolderMemory(Memory):
    """A memory whose rows are in a local folder; their index is in the same folder or in Elasticsearch.

    `build` makes one of a table, and a model searches it. Each change makes a new version (see `Version`), which ranks
    like a memory that was built of its rows; a version never changes.
    """

    def __init__(self, folder: Path, retriever: Retriever, version: int | None = None) -> None:
        """Open a version, None opens the current one; raise an `InputError` if it is missing or damaged."""
        self.folder = folder
        self.retriever = retriever
        state = versions.read_pointer(folder)
        version = state["version"] if version is None else version
        self._open(state, versions.open_kept(folder, state, version))

    def _open(self, state: PlainDict, version: Version) -> None:
        self._state, self.opened = state, version
        self.rows, self.version = version.rows, version.number
        self.fingerprint, folder = version.index_of(self.retriever)
        try:
            self.retriever.open(folder, self.fingerprint)
        except DamagedError as damage:
            if not folder.exists() and state["ranking"] != self.retriever.describe_ranking():
                raise  # a memory of another ranking
            log.warning("%s; the index is rebuilt", str(damage).partition("; ")[0])  # without its advice
            self.retriever.index(self.rows, self.fingerprint, folder)

    @classmethod
    def build(cls, rows: Rows, retriever: Retriever, folder: Path) -> FolderMemory:
        """Write and index the rows, unless that is done, and open version 1, which has these rows."""
        if len(rows) == 0:
            raise InputError(f"{rows.source}: a memory needs at least one row")
        check_ids(rows)
        with storage.lock(folder):
            if folder.exists():
                storage.check_inside(folder)
            state = _built_state(folder, rows)
            if change := "ranking" in state and changed_ranking(state["ranking"], retriever):
                # For example that of an encoder before it was tuned again.
                log.info("%s: %s; it is kept, and the new one is built next to it", folder, change)
            for number in sorted({1, int(state["version"])}):
                version = Version.open(folder, number)
                fingerprint, index = version.index_of(retriever)
                # A whole index is not built again: another process may have opened it.
                if not storage.is_whole(index, fingerprint):
                    retriever.index(version.rows, fingerprint, index)
            # The ranking is stored, too, since an encoder's files may be replaced by others.
            described = {"retriever": retriever.describe(), "ranking": retriever.describe_ranking()}
            versions.write_pointer(folder, {**state, **described})
        return cls(folder, retriever, version=1)

    def copy_to(self, folder: Path, only_current: bool = False) -> FolderMemory:
        """Copy the memory into a new folder, by links where possible, and open it; an index on a server is shared.

        With `only_current`, no other version is copied. The caller writes a model folder, whole or not at all.
        """
        with storage.lock(self.folder):
            state = versions.read_pointer(self.folder)
            first = state["version" if only_current else "first"]
            kept = [versions.folder_of(self.folder, each) for each in range(first, state["version"] + 1)]
            others = [each.name for each in self.folder.glob("version-*") if each not in kept]
            hidden = shutil.ignore_patterns(".*", versions.POINTER, *others)
            shutil.copytree(self.folder, folder, copy_function=storage.link, ignore=hidden)
        versions.write_pointer(folder, {**state, "first": first})
        for path in (folder, *folder.rglob("*")):
            storage.sync(path)
        return type(self)(folder, self.retriever)

    def __len__(self) -> int:
        return len(self.rows)

    # --- changes ---

    def add(
        self, rows: Rows, keep_ids: bool = False, note: str | None = None, relabel: bool = False
    ) -> Addition:
        """Add rows, with labels if the memory has labels; an `InputError` leaves the memory unchanged.

        A row is skipped if the memory, or an earlier row of `rows`, has a duplicate with the same label. Unless
        `keep_ids`, the id of a row is VERSION:POSITION, such as 2:0, or 2:0+ if a row has that id. `note` is kept with
        the version. With `relabel`, rows of the memory with the texts of new ones get their labels in the same version.
        """
        if len(rows) == 0:
            raise InputError(f"{rows.source}: no rows to add")
        with self._changing():
            check_labels(rows, bool(self.labels()))
            corrected = corrections(self.rows, self.opened.lookup, rows) if relabel else {}
            chosen, duplicates, conflicting = select_new(self.rows, self.opened.lookup, rows, corrected)
            added, version = len(chosen), self.version + bool(chosen or corrected)
            addition = Addition(version, len(self) + added, added, duplicates, conflicting, len(corrected))
            if version == self.version:
                return addition
            new, old = rows.select(chosen), self.rows.select([*corrected])
            if not keep_ids:
                ids = [f"{version}:{position}" for position in chosen]
                while (self.opened.row_of_ids(ids) >= 0).any():
                    ids = [f"{name}+" for name in ids]
                new = Rows.from_lists(new.texts, new.table.column("label").to_pylist(), ids, rows.source)
            check_ids(new, self.rows)
            new = Rows.concat([Rows.from_lists(old.texts, corrected.values(), old.ids), new])
            changes = [f"+{added}"] * bool(added) + [f"{len(corrected)} relabelled"] * bool(corrected)
            self._put(np.array([*corrected], np.int64), new, ", ".join(changes), note)
        return addition

    def remove(self, ids: Sequence[str], note: str | None = None) -> Change:
        """Remove the rows with these ids; an `InputError`, e.g. for an unknown id, leaves the memory unchanged.

        The last row of the memory is never removed.
        """
        with self._changing():
            removed = self.opened.rows_with_ids(ids)
            kept = np.delete(np.arange(len(self)), removed)
            if len(kept) == 0:
                raise InputError(f"{self.folder}: these are all rows of the memory, which needs at least one")
            if len(removed):
                self._write_version(Rows(SCHEMA.empty_table(), ""), kept, f"-{len(removed)}", note)
        return Change(self.version, len(self), len(removed))

    def replace(self, rows: Rows | Mapping[str, str], note: str | None = None) -> Change:
        """Put rows, or labels by ids, in the place of those with the same ids; see `add` and `remove`."""
        with self._changing():
            if not isinstance(rows, Rows):
                texts = self.rows.texts.take(self.opened.rows_with_ids(list(rows)))
                rows = Rows.from_lists(texts, rows.values(), list(rows), str(self.folder))
            places = self.opened.rows_with_ids(rows.ids)
            check_labels(rows, bool(self.labels()))
            text, label = versions.differences(self.rows.select(places), rows)
            changed = np.flatnonzero(text | label)
            if len(changed):
                done = "replaced" if text.any() else "relabelled"
                self._put(places[changed], rows.select(changed), f"{len(changed)} {done}", note)
        return Change(self.version, len(self), len(changed))

    def revert(self, number: int, note: str | None = None, also: PointerChange = dict) -> Change:
        """Make a new version of the files of an earlier one; `also` changes other keys of the pointer with it."""
        with self._changing():
            before, earlier = self.opened, self.open_version(number)
            if number == self.version:
                return Change(self.version, len(self), 0)
            self._switch_to(earlier.write_again(self.version + 1, note), also=also)
            changed = sum(map(len, versions.difference(before, earlier)[:3]))
        return Change(self.version, len(self), changed)

    def compact(self, keep: int = 1) -> int:
        """Delete all versions but the last `keep` ones, for good; return the number of deleted versions.

        What only they have is then in no file of the memory. Indexes of other rankings are deleted, too.
        """
        if keep < 1:
            raise InputError(f"keep={keep}: keep at least 1 version")
        with self._changing():
            before = self._state["first"]
            first = max(before, self.version - keep + 1)
            if first > before:
                self._switch({**self._state, "first": first})
            versions.delete_unused(self.folder, self._state, self.retriever)
            versions.delete_removed(self.folder, self._state, self.retriever)
        return int(first - before)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Reserve the memory and open its current version.

        Until the pointer is switched, the current version stays current, even if the process is killed.
        """
        with storage.lock(self.folder):
            state = versions.read_pointer(self.folder)
            if self._state != state or self.version != state["version"]:
                self._open(state, Version.open(self.folder, state["version"], contents=True))
            versions.delete_unused(self.folder, state, self.retriever)
            versions.merge_vectors(self.folder)
            yield
            try:
                versions.delete_unused(self.folder, self._state, self.retriever)
            except InputError as error:  # of a server
                message = "the change is made, but an old index is left; the next one deletes it: %s"
                log.warning(message, error)

    def _switch(self, state: PlainDict, also: PointerChange = dict) -> None:
        versions.write_pointer(self.folder, state, also)
        self._state = state

    def _put(self, places: NDArray[np.int64], rows: Rows, change: str, note: str | None) -> None:
        """Write and open a version in which the first rows are in the place of others, and the rest at the end."""
        order = np.append(np.arange(len(self)), np.arange(len(places), len(rows)) + len(self))
        order[places] = len(self) + np.arange(len(places))
        self._write_version(rows, order, change, note)

    def _write_version(self, new: Rows, order: NDArray[np.int64], change: str, note: str | None) -> None:
        """Write and open the next version, whose rows have these positions among the current and the new ones."""
        written = Rows(Rows.concat([self.rows, new]).table, str(self.folder))
        known = np.where(order < len(self), order, -1)
        self._switch_to(self.opened.write_next(written.select(order), known, change, note), known)

    def _switch_to(
        self, version: Version, known: NDArray[np.int64] | None = None, also: PointerChange = dict
    ) -> None:
        """Open a version and make it the current one; `known` None: it has an index, else see `Retriever.update`."""
        before = self.opened
        try:
            if known is not None:
                fingerprint, index = version.index_of(self.retriever)
                self.retriever.update(version.rows, fingerprint, known, index)
            self._open(self._state, version)
            self._switch({**self._state, "version": version.number}, also)
        except BaseException:
            with suppress(InputError):  # the server may be unreachable; the first error is the one to report
                self._open(self._state, before)
            raise

    # --- contents ---

    def history(self, most: int | None = None) -> list[PlainDict]:
        """Return the entries (see `entry_of`) of the kept versions up to the open one, or of the last ones."""
        numbers = range(self._state["first"], self.version + 1)
        return [versions.entry_of(self.folder, number) for number in numbers[-(most or len(numbers)) :]]

    def open_version(self, number: int) -> Version:
        """Open a version that is kept; an `InputError` if it is missing, damaged, or was deleted."""
        if number == self.version:
            return self.opened
        return versions.open_kept(self.folder, versions.read_pointer(self.folder), number)

    @override
    def labels(self) -> list[str]:
        return self.rows.distinct_labels()

    @override
    def location(self) -> str:
        return str(self.folder)

    @override
    def has_duplicates_of(self, texts: Rows, same_table: bool, neighbors: Neighbors) -> NDArray[np.bool_]:
        # Exact: the hashes of all rows are compared, not only those of the neighbors.
        held: NDArray[np.bool_] = self.opened.lookup.first_rows(fold_hashes(texts.texts)) >= 0
        return held | (self.opened.row_of_ids(texts.ids) >= 0) if same_table else held

    @override
    def search(
        self, texts: Sequence[str], k: int, exclude_duplicates: bool = False, own_ids: list[str] | None = None
    ) -> Neighbors:
        exclude = self.opened.excluded_rows(texts, own_ids) if exclude_duplicates else None
        hits = self.retriever.search(texts, k, exclude)
        rows, inverse = np.unique(hits.rows, return_inverse=True)
        if rows.max(initial=-1) >= len(self.rows):
            raise damaged(self.folder, f"its index has a row {rows.max()}, the memory {len(self.rows)} rows")
        start = int(rows.size > 0 and rows[0] == -1)
        numbers = (inverse.reshape(hits.rows.shape) - start).astype(np.int32)
        return Neighbors(numbers, hits.scores, self.rows.select(rows[start:]))


def changed_ranking(ranking: PlainDict, retriever: Retriever) -> str:
    """Describe the difference between the ranking of an index and that of a retriever; "" if there is none."""
    now = retriever.describe_ranking()
    if ranking == now:
        return ""
    if {**ranking, "encoder": None} == {**now, "encoder": None}:
        return f"its index has vectors of another encoder: {ranking['encoder']}, now {now['encoder']}"
    return f"the memory was built for {ranking}, but the retriever is set to {now}"


def _built_state(folder: Path, rows: Rows) -> PlainDict:
    """Return the state of a memory that began with these rows; its first version is written unless it is whole."""
    first: PlainDict = {"version": 1, "first": 1, "began_with": rows.fingerprint}
    has_pointer = (folder / versions.POINTER).exists()
    try:
        state = versions.read_pointer(folder) if has_pointer else first
        if state["first"] > 1:
            raise InputError(f"{folder}: `zoo memory compact` deleted version 1; build it in another folder")
        if has_pointer or versions.folder_of(folder, 1).exists():
            Version.open(folder, 1, contents=True, fingerprint=rows.fingerprint)
            return state
    except DamagedError:
        if versions.folder_of(folder, 2).exists():
            raise
    Version.write_first(folder, rows)
    (folder / versions.POINTER).unlink(missing_ok=True)  # damaged
    return first
