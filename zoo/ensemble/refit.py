"""Members and weights for a memory that has grown.

Weights are fitted on labelled rows, and on rows of the memory from which neither members nor encoder have learned. If
the members are fitted to the memory's rows first, these rows are cross-fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.classification import label_numbers
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import LeftOut
from zoo.ensemble.base import EnsembleModel, read_table
from zoo.ensemble.cross_fitting import ReadRows, classify, cross_fit, pools_by_fold
from zoo.ensemble.fit import fit_members
from zoo.ensemble.members import Members
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.new_labels import combine
from zoo.ensemble.pool import HeldOut, Pool, fit_pool, folds_of
from zoo.tasks.classification.held_out import HeldOutRows, rows_to_keep

#: Weights are fitted to rows of the memory alone if there are at least as many.
_FEWEST_ROWS = 50


def refit(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    memory: Memory | None,
    rows: Rows | None,
    members: bool = False,
) -> str:
    """Fit calibrations and weights again; duplicates of the memory or of training rows are skipped.

    Without labelled rows, weights are fitted to cross-fitted rows of the memory, and kept where there are none.
    """
    before = model.network.pool
    if before is None:
        raise InputError(
            "zoo memory tune: the run was stopped before its weights were fitted; resume it first"
        )
    model.read_memory(data, memory)
    refitting = MemberFit(model, data, memory) if members else None
    model.search_memory(data, memory)  # also for members that have no weight yet
    held_out = None if rows is None else LabelledRows(model, data, memory, rows)
    known = [] if held_out is None else [held_out.known()]
    accuracy = [_accuracy(before, part) for part in known]
    if refitting is None:
        added, fitted = _added_rows(model, data, memory), ""
    else:
        enough = held_out is not None and held_out.count >= max(model.few_rows, 1)
        added, fitted = refitting.run(crosses=not enough), refitting.describe()
        known = [] if held_out is None else [held_out.known()]
    if not known and sum(len(part.target) for part in added) < _FEWEST_ROWS:
        return (
            f"{fitted}the weights are as they were: there are no held-out rows, and fewer than {_FEWEST_ROWS} rows of"
            " the memory from which nothing was learned; to fit them, zoo memory tune with other labelled rows"
        )
    after = fit_pool(HeldOut.join([*known, *added]))
    model.network.pool = after
    model.held_out = None if held_out is None else held_out.to_keep(added)
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in after.weights["all"].items())
    counts = [f"{len(part.target)}" for part in (*known, *added)]
    if held_out is None:
        return (
            f"{fitted}weights {weights}, fitted on {counts[0]} rows of the memory, each classified without it"
        )
    more = f" and {counts[1]} of the memory, each classified without it" if added else ""
    accuracies = f"{accuracy[0]:.4f} -> {_accuracy(after, known[0]):.4f}"
    left_out = str(held_out.left_out)
    return (
        f"{fitted}weights {weights}; accuracy {accuracies} on the {counts[0]} rows that they were fitted on"
        f"{more}" + (f"; skipped: {left_out}" if left_out else "")
    )


class LabelledRows:
    """Rows for weights that are in neither the memory nor the training table."""

    def __init__(
        self, model: EnsembleModel, data: TextRowsDataModule[Any], memory: Memory | None, rows: Rows
    ) -> None:
        """Retrieve their neighbors; raises an `InputError` for labels that the model lacks, and if no row is left."""
        if rows.labels is None:
            raise InputError(f"{rows.source}: tuning needs labelled rows")
        if unknown := sorted(set(rows.labels) - set(model.labels)):
            raise InputError(
                f"{rows.source}: the model does not know the label {unknown[0]!r}; remove such rows"
            )
        self.model, self.data, self.memory = model, data, memory
        self.split = data.split_of(rows, memory)
        self.marks = data.marks_of(rows, self.split.neighbors, memory, data.seen)
        self.left_out = LeftOut.of(self.marks)
        #: numbers of the rows that are used, and the classes of all.
        self.rows, self.target = _usable_rows(model, self.split, self.marks.is_independent)
        self.count = int((self.target[self.rows] < model.network.num_classes).sum())
        if self.count == 0:
            raise InputError(
                "zoo memory tune: all rows have duplicates in the memory or among the training rows, near ones"
                " included, or labels that only the memory has; tune on other rows"
            )

    def known(self) -> HeldOut:
        """Outputs of the members, as they are now, for the rows with a label of the training."""
        return self._classify().known(self.model.network.num_classes)

    def _classify(self) -> HeldOut:
        return _classify(self.model, self.data, self.split, self.rows, self.target)

    def to_keep(self, added: Sequence[HeldOut]) -> HeldOutRows | None:
        """The rows that stay with the model, with results by weights without their fold; None for a single row."""
        network, held_out = self.model.network, self._classify()
        probabilities = torch.zeros(len(self.rows), len(self.model.labels))
        for rows, pool in pools_by_fold(held_out, added, network.num_classes):
            if pool is None:
                return None
            blank = torch.zeros(len(rows), network.num_classes)
            logits, _ = combine(held_out.select(rows).outputs, pool, network.rarity.cpu(), blank)
            probabilities[rows] = logits.softmax(dim=1)
        kept, labels = self.split.rows.select(self.rows), self.model.labels
        return rows_to_keep(
            kept.texts, list(kept.labels or []), held_out.groups, labels, probabilities, network.num_classes,
            self.memory, self.data.seed,
        )  # fmt: skip


def _accuracy(pool: Pool, held_out: HeldOut) -> float:
    predicted = pool.combine(pool.calibrate(held_out.outputs)).argmax(dim=1)
    return float((predicted == held_out.target).double().mean())


def _usable_rows(
    model: EnsembleModel, split: TextSplit, chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The chosen rows whose labels the model knows, those that only the memory has included; and all classes."""
    target = label_numbers(split.rows, model.labels)
    return np.flatnonzero(chosen & (target >= 0)), target


def _classify(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    rows: NDArray[np.int64],
    target: NDArray[np.int64],
    excludes_duplicates: bool = False,
) -> HeldOut:
    """Outputs for some rows of a split; `target` has the classes of all."""
    network = model.network
    readings = read_table(model, data, split, network.members.reads, rows=rows)
    if excludes_duplicates:
        readings = readings._replace(excluded=network.excluded_rows(readings.texts))
    outputs = classify(network.members, readings, model.device) if len(rows) else {}
    return HeldOut(outputs, torch.from_numpy(target[rows]), data.duplicate_keys(split.rows)[rows])


def _added_rows(model: EnsembleModel, data: TextRowsDataModule[Any], memory: Memory | None) -> list[HeldOut]:
    """Outputs for the rows that were added to the memory after the members' fit; an empty list if there are none."""
    first = max(model.network.fitted_version, 1)
    if not isinstance(memory, FolderMemory) or memory.version <= first:
        return []
    rows = memory.rows.select(memory.opened.rows_since(first))
    split = data.split_of(rows, memory, exclude_duplicates=True)
    marks = data.marks_of(rows, split.neighbors, None, data.seen)
    usable, target = _usable_rows(model, split, marks.is_independent)
    usable = usable[target[usable] < model.network.num_classes]
    held_out = _classify(model, data, split, usable, target, excludes_duplicates=True)
    return [held_out] if len(held_out.target) else []


class MemberFit:
    """Fits the members that need no gradients to the rows of a memory, except rows of classes that training lacked."""

    def __init__(self, model: EnsembleModel, data: TextRowsDataModule[Any], memory: Memory | None) -> None:
        """Select the rows; raises an `InputError` where there is nothing to fit, or nothing to fit it on."""
        if not isinstance(memory, FolderMemory):
            raise InputError(
                "zoo memory tune: --refit reads all rows of the memory, and an index of your own can only be searched;"
                " omit it"
            )
        self.model, self.data, self.memory = model, data, memory
        self.network: EnsembleNetwork = model.network
        members = self.network.members.by_name
        self.names = [name for name, member in members.items() if member.fitted_on]
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
        network, seen = self.network, self.data.seen
        split = self.data.split_of(self.rows, self.memory if crosses else None, exclude_duplicates=True)
        inputs = network.members.reads if crosses else set()
        # Words without a pre-trained vector have the weight 0 in a bag.
        has_vector = None if network.bag is None else network.bag.idf.cpu() > 0
        readings = fit_members(self.model, self.data, split, self.target, inputs, has_vector)
        network.fitted_version = self.memory.version
        # An encoder that has learned from rows knows them; what is cross-fitted does not.
        has_learned = self.model.learned_by_gradients() is not None
        marks = self.data.marks_of(self.rows, split.neighbors, None, seen if has_learned else None)
        usable = np.flatnonzero(marks.is_independent)
        if not crosses or len(usable) == 0 or len(np.unique(self.keys)) == 1:
            return []
        readings = readings._replace(excluded=network.excluded_rows(readings.texts))
        reader = ReadRows(readings, (network.memory, network.memory_target))
        members = partial(Members, list(network.members), network.sizes)
        folds = folds_of(self.target, self.model.folds, self.keys)
        return [cross_fit(reader, members, self.target, self.keys, folds).select(usable)]

    def describe(self) -> str:
        """The beginning of the report."""
        seen = self.data.seen
        lost = 0 if seen is None else int((~np.isin(seen, self.keys)).sum())
        less = f" (without {lost:,} training texts, which the memory lacks)" if lost else ""
        return f"{', '.join(self.names)} fitted to {len(self.rows):,} rows of the memory{less}; "
