"""Members and weights for a memory that has grown.

Weights are fitted on labelled rows, and on rows of the memory from which neither members nor encoder have learned. If
the members are fitted to the memory's rows first, these rows are cross-fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from zoo.ensemble.fit import cross_fit, fit_members
from zoo.ensemble.held_out import rows_of_refit
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.outputs import Outputs
from zoo.ensemble.pool import HeldOut, Pool, fit_pool, folds_of
from zoo.ensemble.tables import classify_table, read_table
from zoo.saving.held_out import HeldOutRows

if TYPE_CHECKING:
    from zoo.ensemble.model import MemoryEnsemble


def refit(
    model: MemoryEnsemble,
    data: TextRowsDataModule[Any],
    memory: Memory | None,
    rows: Rows,
    members: bool = False,
) -> str:
    """Fit calibrations and weights again; duplicates of the memory or of training rows are skipped."""
    before = model.network.pool
    if before is None:
        raise InputError(
            "zoo memory tune: the run was stopped before its weights were fitted; resume it first"
        )
    model.read_memory(data, memory)
    refitting = MemberFit(model, data, memory) if members else None
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
    accuracy, fitted = _accuracy(before, held_out), ""
    if refitting is None:
        added = _added_rows(model, data, memory)
    else:
        added = refitting.run(crosses=len(held_out.target) < max(model.few_rows, 1))
        held_out, fitted = _classify(model, data, split, marks.is_independent), refitting.describe()
    after = fit_pool(HeldOut.join([held_out, *added]))
    model.network.pool = after
    model.held_out = _rows_to_keep(model, data, split, marks.is_independent, held_out, added)
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in after.weights["all"].items())
    accuracies = f"{accuracy:.4f} -> {_accuracy(after, held_out):.4f}"
    more = f" and {len(added[0].target)} that were added to the memory" if added else ""
    left_out = str(LeftOut.of(marks))
    return (
        f"{fitted}weights {weights}; accuracy {accuracies} on the {len(held_out.target)} rows that they were fitted on"
        f"{more}" + (f"; skipped: {left_out}" if left_out else "")
    )


def _rows_to_keep(
    model: MemoryEnsemble,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    chosen: NDArray[np.bool_],
    held_out: HeldOut,
    added: Sequence[HeldOut],
) -> HeldOutRows | None:
    """The chosen rows [n] of a split, also those of classes that only the memory has; they stay with the weights."""
    rows = split.rows.select(np.flatnonzero(chosen))
    assert rows.labels is not None
    target, groups = label_numbers(rows, model.labels), data.duplicate_keys(rows)
    return rows_of_refit(rows.texts, rows.labels, target, groups, held_out, added, model.network.num_classes)


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
    """Outputs for the rows that were added to the memory after the members' fit; an empty list if there are none."""
    first = max(model.network.fitted_version, 1)
    if not isinstance(memory, FolderMemory) or memory.version <= first:
        return []
    rows = memory.rows.select(memory.rows_since(first))
    split = data.split_of(rows, memory, exclude_duplicates=True)
    marks = data.marks_of(rows, split.neighbors, None, data.duplicates.seen)
    held_out = _classify(model, data, split, marks.is_independent, excludes_duplicates=True)
    return [held_out] if len(held_out.target) else []


class MemberFit:
    """Fits the members that need no gradients to the rows of a memory, except rows of classes that training lacked."""

    def __init__(self, model: MemoryEnsemble, data: TextRowsDataModule[Any], memory: Memory | None) -> None:
        """Select the rows; raises an `InputError` where there is nothing to fit, or nothing to fit it on."""
        if not isinstance(memory, FolderMemory):
            raise InputError(
                "zoo memory tune: --refit reads all rows of the memory, and an index of your own can only be searched;"
                " omit it"
            )
        self.model, self.data, self.memory = model, data, memory
        self.network: EnsembleNetwork = model.network
        self.names = [name for name in self.network.members if self.network.member(name).fitted_on]
        if not self.names:
            raise InputError(
                "zoo memory tune: --refit fits members that need no gradients, and this model has none; omit it"
            )
        target = label_numbers(memory.rows, model.labels)
        known = np.flatnonzero((target >= 0) & (target < self.network.num_classes))
        if len(known) == 0:
            raise InputError(
                f"{memory.location()}: --refit fits members on rows with the labels of the training, and the memory has"
                " none; omit it"
            )
        self.rows, self.target = memory.rows.select(known), target[known]
        self.keys = data.duplicate_keys(self.rows)

    def run(self, crosses: bool) -> list[HeldOut]:
        """Fit the members; return cross-fitted outputs for the rows that the training lacked, if there are any."""
        network, seen = self.network, self.data.duplicates.seen
        split = self.data.split_of(self.rows, self.memory if crosses else None, exclude_duplicates=True)
        inputs = network.inputs_of(network.members) if crosses else set()
        # Words without a pre-trained vector have the weight 0 in a bag.
        has_vector = None if network.bag is None else network.bag.idf.cpu() > 0
        readings = fit_members(self.model, self.data, split, self.target, inputs, has_vector)
        network.fitted_version = self.memory.version
        marks = self.data.marks_of(self.rows, split.neighbors, None, seen)
        usable = np.flatnonzero(marks.is_independent)
        if not crosses or len(usable) == 0 or len(np.unique(self.keys)) == 1:
            return []
        readings = readings._replace(excluded=network.excluded_rows(readings.texts))

        def classify(_: int, rows: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, Outputs]:
            fold = EnsembleNetwork(list(network.members), network.sizes)
            fold.search(network.memory, network.memory_target)
            fold.fit(fold.members, readings.select(others), self.target[others])
            return classify_table(fold, readings.select(rows), list(fold.members), torch.device("cpu"))

        folds = folds_of(self.target, self.model.folds, self.keys)
        return [cross_fit(self.target, self.keys, folds, classify).select(usable)]

    def describe(self) -> str:
        """The beginning of the report."""
        seen = self.data.duplicates.seen
        lost = 0 if seen is None else int((~np.isin(seen, self.keys)).sum())
        less = f" (without {lost:,} training texts, which the memory lacks)" if lost else ""
        return f"{', '.join(self.names)} fitted to {len(self.rows):,} rows of the memory{less}; "
