"""A memory in a folder: built once, searched, and grown version by version."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datamodules.core.arrays import RowLookup
from datamodules.core.errors import DamagedError, InputError
from datamodules.core.storage import (
    MANIFEST,
    REBUILD,
    check_folder,
    contents_of,
    fingerprint_of,
    is_whole,
    lock,
    named_disk_errors,
    new_folder,
    write_json,
)
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import Collection, Retriever
from datamodules.retrieval.folding import FOLDING, fold_hashes
from datamodules.retrieval.memories.memory import Addition, Memory, Neighbors, UnknownLabels

log = logging.getLogger(__name__)

POINTER = "memory.json"


class FolderMemory(Memory):
    """A memory whose rows lie in a local folder; their index lies beside them or in Elasticsearch.

    The folder holds one sub-folder a version and `memory.json`, which points to the current version.
    `rows-<n>` has the rows that are new in version n (so version n is all rows up to there, and rows keep
    their numbers and ids), and the hashes of all. An index belongs to one version, since the scores of old
    rows change with the statistics of the whole. Versions are never changed once written: each gives the
    same neighbours for ever. The index of an old version may be deleted to save disk, then that version
    can't be opened.
    """

    def __init__(self, folder: Path, retriever: Retriever, version: int | None = None) -> None:
        """Open a memory.

        Args:
            folder: what `build` made.
            retriever: the back end with the ranking that the memory was built with.
            version: None opens the current one.

        Raises:
            InputError: there is no memory, it is damaged, or its ranking is another.
        """
        self.folder = folder
        self.retriever = retriever
        current = int(read_pointer(folder)["version"])
        version = current if version is None else version
        # What lies beyond the current one was interrupted.
        if not 1 <= version <= current:
            raise InputError(f"{folder}: has no version {version}; the current one is {current}")
        self._open(version)

    def _open(self, version: int) -> None:
        rows_folder = self.folder / f"rows-{version}"
        self.rows, rows_fingerprint = _load_rows(self.folder, version, contents=True)
        self.version = version
        self.fingerprint = _fingerprint(rows_fingerprint, self.retriever)
        self._lookup = _load_lookup(rows_folder, self.rows)
        index_folder = _index_path(self.folder, self.fingerprint)
        try:
            self.retriever.open(index_folder, self.fingerprint)
        except DamagedError as damage:
            log.warning("%s", str(damage).replace(REBUILD, "the index is made again"))
            self.retriever.index(_collection(self.rows, self.fingerprint), index_folder)

    @classmethod
    def build(cls, rows: Rows, retriever: Retriever, folder: Path, progress: bool = True) -> FolderMemory:
        """Write the rows, index them and open the memory. What is there already is used, not built again.

        Args:
            rows: the memories.
            retriever: an unopened retriever: back end and ranking.
            folder: the memory's own folder.
            progress: show progress on standard error.
        """
        if len(rows) == 0:
            raise InputError(f"{rows.source}: a memory needs at least one row")
        _check_ids(rows)
        with lock(folder):
            if not _has_first_rows(folder, rows.fingerprint):
                _write_rows(folder, 1, rows, rows.fingerprint, fold_hashes(rows.texts))
            # A memory that has grown since stays grown; whoever builds gets the rows that he gave.
            current = _version_to_keep(folder)
            for version in sorted({1, current}):
                version_rows, rows_fingerprint = _load_rows(folder, version)
                fingerprint = _fingerprint(rows_fingerprint, retriever)
                index_folder = _index_path(folder, fingerprint)
                # Not built again: another process may have it open.
                if not is_whole(index_folder, fingerprint):
                    retriever.index(_collection(version_rows, fingerprint), index_folder, progress)
            described = {"retriever": retriever.describe(), "ranking": retriever.ranking.describe()}
            write_pointer(folder, {"version": current, **described})
        return cls(folder, retriever, version=1)

    def copy_to(self, folder: Path) -> FolderMemory:
        """A copy with all its versions, open at the current one; nothing is indexed again.

        Files are linked where the file system can, since what is written is never changed. An index on a server
        is not copied: both memories use it, and an addition to either makes a new one.

        Args:
            folder: the copy's own. What is there already is opened, not made again.

        Returns:
            The copy; it takes over this memory's retriever.
        """
        with lock(folder), lock(self.folder):
            if not (folder / POINTER).exists():
                _copy_files(self.folder, folder)
        return type(self)(folder, self.retriever)

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self,
        rows: Rows,
        labels: Sequence[str] | None = None,
        unknown_labels: UnknownLabels = "refuse",
        keep_ids: bool = False,
        progress: bool = True,
    ) -> Addition:
        """Make the next version, which is then current and open; see `Memory.add`.

        The rows follow those of the current version, whichever one was open. Versions that others have open
        stay as they are. If the process is killed, the current version stays current.
        """
        with lock(self.folder):
            pointer = read_pointer(self.folder)
            if self.version != int(pointer["version"]):
                self._open(int(pointer["version"]))
            self._clear_leftovers()
            hashes = fold_hashes(rows.texts)
            positions, addition = self._choose(rows, hashes, labels, unknown_labels)
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
            fingerprint = _fingerprint(grown.fingerprint, self.retriever)
            try:
                index_folder = _index_path(self.folder, fingerprint)
                self.retriever.add(_collection(grown, fingerprint), len(self.rows), index_folder, progress)
            except BaseException:
                with suppress(InputError):  # the server may have gone; the first error is the one to tell
                    self._open(self.version)
                raise
            write_pointer(self.folder, {**pointer, "version": addition.version})
            self._open(addition.version)
        return addition

    def _choose(
        self,
        rows: Rows,
        hashes: NDArray[np.uint64],
        labels: Sequence[str] | None,
        unknown_labels: UnknownLabels,
    ) -> tuple[list[int], Addition]:
        """The positions of the rows to add; `hashes` [n] are those of their texts."""
        if len(rows) == 0:
            raise InputError(f"{rows.source}: no rows to add")
        labelled = bool(self.labels())
        known = None if labels is None else {*labels, None}
        # The labels that a text has so far, by the text's hash.
        labels_of: dict[int, set[str | None]] = {}
        positions: list[int] = []
        copies = relabelled = unknown = 0
        there = self._lookup.all_rows(hashes)
        column = rows.table.column("label").to_pylist()
        for position, (text_hash, label) in enumerate(zip(hashes.tolist(), column, strict=True)):
            if (label is not None) != labelled:
                wanted = (
                    "has no label; give it one"
                    if labelled
                    else "has a label, but the memory has none; leave the labels out"
                )
                raise InputError(f"{_name_row(rows, position)} {wanted}")
            if known is not None and label not in known:
                if unknown_labels == "refuse":
                    raise InputError(
                        f"{_name_row(rows, position)} has the label {label!r}, which the model does not know;"
                        " correct it, leave out all such rows with --unknown_labels skip, or have a WitnessEnsemble"
                        " predict it by its memory with --new_labels true"
                    )
                unknown += 1
                continue
            if text_hash not in labels_of:
                labels_of[text_hash] = {self.rows.label(int(row)) for row in there[position]}
            so_far = labels_of[text_hash]
            if label in so_far:
                copies += 1
                continue
            relabelled += bool(so_far)
            so_far.add(label)
            positions.append(position)
        added = len(positions)
        return positions, Addition(
            self.version + bool(added), len(self.rows) + added, added, copies, relabelled, unknown
        )

    def _clear_leftovers(self) -> None:
        """Delete what an addition that was killed has left; its rows were never part of the memory."""
        for partial in self.folder.glob(".*.partial"):
            shutil.rmtree(partial)
        unfinished = self.folder / f"rows-{self.version + 1}"
        if unfinished.exists():
            fingerprint = _fingerprint(check_folder(unfinished)["fingerprint"], self.retriever)
            index_folder = _index_path(self.folder, fingerprint)
            # A fused retriever's lie beside the name that it is given.
            for index in self.folder.glob(f"{index_folder.name}*"):
                shutil.rmtree(index)
            shutil.rmtree(unfinished)

    def versions(self) -> list[tuple[int, int]]:
        """All versions up to the open one, oldest first: (number, rows that it has)."""
        folders = [(version, self.folder / f"rows-{version}") for version in range(1, self.version + 1)]
        return [(version, int(check_folder(folder)["rows"])) for version, folder in folders]

    def labels(self) -> list[str]:
        """The distinct labels, sorted; empty if the memory has none."""
        return self.rows.distinct_labels()

    def location(self) -> str:
        """What `open_memory` opens; holds no secret."""
        return str(self.folder)

    def left_out(self, texts: Sequence[str], own_ids: Sequence[str] | None = None) -> list[Any]:
        """The rows that each text must not find where copies are left out; see `Memory.search`."""
        exclude: list[Any] = self.copies(texts)
        if own_ids is not None:
            places = self._places(own_ids)
            there = np.flatnonzero(places >= 0)
            own_texts = self.rows.select(places[there]).texts[:]
            for query, rows in zip(there.tolist(), self.copies(own_texts), strict=True):
                exclude[query] = np.union1d(exclude[query], rows).astype(np.int32)
        return exclude

    def copies(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The rows that are copies of each text, see `datamodules.retrieval.folding`."""
        return self._lookup.all_rows(fold_hashes(texts))

    def holds(self, texts: Rows, same_table: bool, found: Neighbors) -> NDArray[np.bool_]:
        """Whether a copy of each text is in the memory, found or not; see `Memory.holds`."""
        held: NDArray[np.bool_] = self._lookup.first_rows(fold_hashes(texts.texts)) >= 0
        return held | (self._places(texts.ids) >= 0) if same_table else held

    def _places(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """The row with each id, -1 where there is none."""
        wanted = pa.array(ids, pa.string())
        found = pc.index_in(wanted, value_set=self.rows.table.column("id").combine_chunks())
        places: NDArray[np.int32] = pc.fill_null(found, -1).to_numpy()
        return places

    def search(
        self,
        texts: Sequence[str],
        k: int,
        leave_out_copies: bool = False,
        own_ids: Sequence[str] | None = None,
    ) -> Neighbors:
        """The k best memories of each text; see `Memory.search`."""
        exclude = self.left_out(texts, own_ids) if leave_out_copies else None
        hits = self.retriever.search(texts, k, exclude)
        # Keep what was found, numbered from 0, so that the result needs no more of the memory.
        found, inverse = np.unique(hits.rows, return_inverse=True)
        start = int(found.size > 0 and found[0] == -1)
        return Neighbors(
            rows=(inverse.reshape(hits.rows.shape) - start).astype(np.int32),
            scores=hits.scores,
            memories=self.rows.select(found[start:]),
        )


def _fingerprint(rows_fingerprint: str, retriever: Retriever) -> str:
    return fingerprint_of({"rows": rows_fingerprint, **retriever.ranking.describe()})


def _collection(rows: Rows, fingerprint: str) -> Collection:
    return Collection(rows.texts, fingerprint, rows.ids, rows.table.column("label").to_pylist())


def _name_row(rows: Rows, position: int) -> str:
    """For messages: which row of a table this is, counted from 1 without the header."""
    text = rows.texts[position]
    return f"{rows.source}: row {position + 1} ({text[:40]!r}{'...' if len(text) > 40 else ''})"


def _check_ids(rows: Rows) -> None:
    """Neighbours are told apart by their ids."""
    counts = pc.value_counts(rows.table.column("id"))
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise InputError(
            f"{rows.source}: the id {repeated[0]['values'].as_py()!r} stands for"
            f" {repeated[0]['counts'].as_py()} rows; give each row of a memory its own, or name no id column"
        )


def read_pointer(folder: Path) -> dict[str, Any]:
    """The contents of a memory folder's `memory.json`.

    Raises:
        InputError: the folder is no memory.
    """
    path = folder / POINTER
    if not path.exists():
        raise InputError(
            f"{folder}: no memory here (it has no {POINTER}); build one with `zoo index` or name another"
            " with --data.memory"
        )
    try:
        pointer: dict[str, Any] = json.loads(path.read_text())
        if "checksum" in pointer:  # memories from before have none
            checksum = pointer.pop("checksum")
            if checksum != fingerprint_of(pointer):
                raise ValueError("its checksum has changed")
        if pointer.keys() - {"version", "retriever", "ranking"}:
            raise ValueError("something strange is in it")
        int(pointer["version"])
        pointer["retriever"]["class_path"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: damaged; build the memory again with `zoo index`") from error
    return pointer


def contents_of_memory(folder: str) -> dict[str, Any]:
    """Identifies the rows of a memory folder and how they are ranked, without reading the rows or an index.

    A version's manifest holds the checksums of its rows, and they are compared when the memory is opened.
    """
    noted = [Path(folder, POINTER), *sorted(Path(folder).glob(f"rows-*/{MANIFEST}"))]
    return {str(path.relative_to(folder)): contents_of(path) for path in noted}


def write_pointer(folder: Path, pointer: dict[str, Any]) -> None:
    """Switch the memory to a version in one atomic step."""
    with named_disk_errors(folder):
        write_json(folder / POINTER, {**pointer, "checksum": fingerprint_of(pointer)})


def _version_to_keep(folder: Path) -> int:
    """The current version of a memory that is built (again)."""
    try:
        return int(read_pointer(folder)["version"]) if (folder / POINTER).exists() else 1
    except InputError:
        if (folder / "rows-2").exists():
            raise InputError(
                f"{folder / POINTER}: damaged, and the memory had grown; put the file back from a copy, or"
                " delete rows-2 and all later ones to go back to the first version"
            ) from None
        return 1


def _has_first_rows(folder: Path, fingerprint: str) -> bool:
    """Whether the rows that a memory is to begin with are there.

    Raises:
        InputError: it began with others, or can't be mended without losing what was added to it.
    """
    first = folder / "rows-1"
    if not first.exists():
        return False
    other = "name another folder, or delete this one whole, with what was added to it"
    try:
        check_folder(first, fingerprint, contents=True, advice=_lost_rows(folder, 1))
    except DamagedError:
        if (folder / "rows-2").exists():
            raise
        return False
    except InputError as error:
        raise InputError(f"{folder}: is a memory of other rows already; {other}") from error
    return True


def _lost_rows(folder: Path, version: int) -> str:
    """What to do about damaged rows: they are in no other place."""
    if version == 1:
        return f"put it back from a copy, or build the memory again in another folder than {folder}"
    return f"put it back from a copy; until then use an earlier version (--memory_version {version - 1})"


def _load_rows(folder: Path, version: int, contents: bool = False) -> tuple[Rows, str]:
    """All rows of a version, and their fingerprint; with their checksums compared if wanted."""
    numbers = range(1, version + 1)
    parts = [folder / f"rows-{number}" for number in numbers]
    manifests = [
        check_folder(part, contents=contents, advice=_lost_rows(folder, number))
        for part, number in zip(parts, numbers, strict=True)
    ]
    rows = Rows.concat([Rows.load(part / "rows.arrow") for part in parts])
    return Rows(rows.table, str(folder)), str(manifests[-1]["fingerprint"])


def _load_lookup(folder: Path, rows: Rows) -> RowLookup:
    """The rows of a version by the hashes of their texts."""
    if check_folder(folder).get("folding") == FOLDING:
        return RowLookup.open(folder)
    # Written when copies were told otherwise: by those hashes, no text would find its copy.
    return RowLookup.of(fold_hashes(rows.texts))


def _write_rows(
    folder: Path, version: int, new: Rows, fingerprint: str, all_hashes: NDArray[np.uint64]
) -> None:
    """Write what is new in a version; fingerprint and hashes are those of all its rows."""
    facts = {"rows": len(all_hashes), "folding": FOLDING}
    with new_folder(folder / f"rows-{version}", fingerprint, **facts) as partial:
        new.save(partial / "rows.arrow")
        RowLookup.of(all_hashes).save(partial)


def _index_path(folder: Path, fingerprint: str) -> Path:
    """The folder of the index with this fingerprint."""
    return folder / f"index-{fingerprint[:16]}"


def _copy_files(source: Path, target: Path) -> None:
    """Copy a memory folder, in one step; files are linked where the file system can."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    with named_disk_errors(target, "the run's folder"):
        shutil.copytree(source, partial, copy_function=_link, ignore=shutil.ignore_patterns(".*"))
        partial.rename(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)
