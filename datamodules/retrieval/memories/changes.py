"""Rules for the rows that change a memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pyarrow.compute as pc

from datamodules.core.arrays import RowLookup
from datamodules.core.errors import InputError, excerpt, name_some
from datamodules.corpora.rows import Rows
from datamodules.retrieval.folding import fold_hashes

log = logging.getLogger(__name__)


def select_new(
    memory: Rows, lookup: RowLookup, rows: Rows, corrected: Mapping[int, str]
) -> tuple[list[int], int, int]:
    """Return the positions of the rows to add, and the numbers of duplicates and of rows with conflicting labels.

    `lookup` has the hashes of the memory's texts, `corrected` new labels of its rows. See `Addition`.
    """
    hashes = fold_hashes(rows.texts)
    labels = rows.table.column("label").to_pylist()
    labels_of: dict[int, set[str | None]] = {}
    positions: list[int] = []
    duplicates = conflicting = 0
    matches = [each.tolist() for each in lookup.all_rows(hashes)]
    for position, (text_hash, label) in enumerate(zip(hashes.tolist(), labels, strict=True)):
        if text_hash not in labels_of:
            labels_of[text_hash] = {corrected.get(row, memory.label(row)) for row in matches[position]}
        if label in labels_of[text_hash]:
            duplicates += 1
            continue
        conflicting += bool(labels_of[text_hash])
        labels_of[text_hash].add(label)
        positions.append(position)
    return positions, duplicates, conflicting


def corrections(memory: Rows, lookup: RowLookup, rows: Rows) -> dict[int, str]:
    """Return the rows of a memory that have the text of one of `rows` and another label, and the label of that one.

    Raises an `InputError` if a text has two labels among the rows.
    """
    labels: dict[int, str] = {}
    matches = lookup.all_rows(fold_hashes(rows.texts))
    for position, label in enumerate(rows.labels or ()):
        for row in matches[position].tolist():
            if labels.setdefault(row, label) != label:
                raise InputError(f"{name_row(rows, position)} has another label in another row; give it one")
    return {row: label for row, label in labels.items() if memory.label(row) not in (None, label)}


def conflicting_rows(memory: Rows, lookup: RowLookup) -> list[list[int]]:
    """Return the rows of each text that has several labels, duplicates included."""
    labels = pc.dictionary_encode(memory.table.column("label").combine_chunks()).indices
    codes = pc.fill_null(labels, -1).to_numpy()[lookup.rows]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(lookup.keys)) + 1, [len(lookup.keys)]])
    differ = np.flatnonzero((np.diff(codes) != 0) & (np.diff(lookup.keys) == 0))
    groups = np.unique(np.searchsorted(starts, differ, side="right") - 1)
    return [lookup.rows[starts[group] : starts[group + 1]].tolist() for group in groups.tolist()]


def check_labels(rows: Rows, memory_has_labels: bool) -> None:
    """Refuse rows without a label where the memory has labels, and with one where it has none."""
    unfit = np.flatnonzero(rows.table.column("label").is_null().to_numpy() == memory_has_labels)
    if len(unfit):
        problem = "has a label, but the memory has none; omit the labels"
        if memory_has_labels:
            problem = "has no label; give it one"
        raise InputError(f"{name_row(rows, int(unfit[0]))} {problem}")


def check_ids(rows: Rows, memory: Rows | None = None) -> None:
    """Refuse rows with equal ids, or ids of a memory: neighbors are identified by their ids."""
    repeated = rows.repeated_ids()
    if memory is not None and not repeated:
        held, ids = memory.table.column("id"), rows.table.column("id").combine_chunks()
        repeated = held.filter(pc.is_in(held, value_set=ids)).to_pylist()
    if repeated:
        problem = f"several rows have the id {name_some(repeated)}"
        raise InputError(f"{rows.source}: {problem}; give each its own, or name no id column")


def name_row(rows: Rows, position: int) -> str:
    """Return the location of a row for messages: its number counts from 1, without the header."""
    return f"{rows.source}: row {position + 1} ({excerpt(rows.texts[position], 40)!r})"
