"""Weights for a memory that has grown: fitted again on labelled rows and on the added rows, which are held-out, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import LeftOut
from zoo.ensemble.pool import HeldOut, Pool, fit_pool
from zoo.ensemble.tables import classify_table, read_table

if TYPE_CHECKING:
    from zoo.ensemble.model import MemoryEnsemble


def refit(model: MemoryEnsemble, data: TextRowsDataModule[Any], memory: Memory | None, rows: Rows) -> str:
    """Fit calibrations and weights again, see `Refits`; duplicates of the memory or of training rows are skipped."""
    before = model.network.pool
    if before is None:
        raise InputError(
            "zoo memory tune: the run was stopped before its weights were fitted; resume it first"
        )
    model.read_memory(data, memory)
    model.search_memory(data, memory)  # also for members that have no weight yet
    if rows.labels is None:
        raise InputError(f"{rows.source}: tuning needs labelled rows")
    if unknown := sorted(set(rows.labels) - set(model.labels)):
        raise InputError(f"{rows.source}: the model does not know the label {unknown[0]!r}; remove such rows")
    split = data.split_of(rows, memory)
    marks = data.marks_of(rows, split.neighbors, memory, data.duplicates.seen)
    held_out = _classify(model, data, split, marks.is_independent)
    if len(held_out.target) == 0:
        raise InputError(
            "zoo memory tune: all rows have duplicates in the memory or among the training rows, near ones included, or"
            " labels that only the memory has; tune on other rows"
        )
    added = _added_rows(model, data, memory)
    after = fit_pool(HeldOut.join([held_out, *added]))
    model.network.pool = after
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in after.weights["all"].items())
    accuracies = f"{_accuracy(before, held_out):.4f} -> {_accuracy(after, held_out):.4f}"
    more = f" and {len(added[0].target)} that were added to the memory" if added else ""
    left_out = str(LeftOut.of(marks))
    return (
        f"weights {weights}; accuracy {accuracies} on the {len(held_out.target)} rows that they were fitted on{more}"
        + (f"; skipped: {left_out}" if left_out else "")
    )


def _accuracy(pool: Pool, held_out: HeldOut) -> float:
    predicted = pool.combine(pool.calibrate(held_out.outputs)).argmax(dim=1)
    return float((predicted == held_out.target).double().mean())


def _classify(
    model: MemoryEnsemble,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    chosen: NDArray[np.bool_],
    excludes_duplicates: bool = False,
) -> HeldOut:
    """Outputs for the chosen rows [n] of a split whose labels are the training's."""
    network, labels = model.network, label_numbers(split.rows, model.labels)
    rows = np.flatnonzero(chosen & (labels >= 0) & (labels < network.num_classes))
    names = list(network.members)
    readings = read_table(model, split, network.inputs_of(names), rows=rows)
    if excludes_duplicates:
        readings = readings._replace(excluded=network.excluded_rows(readings.texts))
    outputs = classify_table(network, readings, names, model.device) if len(rows) else {}
    return HeldOut(outputs, torch.from_numpy(labels[rows]), data.duplicate_keys(split.rows)[rows])


def _added_rows(model: MemoryEnsemble, data: TextRowsDataModule[Any], memory: Memory | None) -> list[HeldOut]:
    """Outputs for the rows that were added to the memory after the training; an empty list if there are none."""
    if not isinstance(memory, FolderMemory) or memory.version == 1:
        return []
    rows = memory.rows.select(np.arange(memory.versions()[0][1], len(memory)))
    split = data.split_of(rows, memory, exclude_duplicates=True)
    marks = data.marks_of(rows, split.neighbors, None, data.duplicates.seen)
    held_out = _classify(model, data, split, marks.is_independent, excludes_duplicates=True)
    return [held_out] if len(held_out.target) else []
