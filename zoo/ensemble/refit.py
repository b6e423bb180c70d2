"""Members and weights for a memory that has grown.

Weights are fitted on labelled rows, and on rows of the memory from which neither members nor encoder have learned. If
the members are fitted to the memory's rows first, these rows are cross-fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from datamodules.classification import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.multilabel import distinct_labels, split_labels
from datamodules.corpora.rows import Rows
from datamodules.retrieval import FolderMemory, Memory
from datamodules.retrieval.folding import fold_hashes
from datamodules.retrieval.memories.near_duplicates import group_near_duplicates
from datamodules.text_rows import TextSplit
from zoo.ensemble.answer import describe_left_out, left_out_of
from zoo.ensemble.base import EnsembleModel
from zoo.ensemble.cross_fitting import cross_fit, pools_by_fold
from zoo.ensemble.fit import classify_rows, fit_members, without_near_duplicates
from zoo.ensemble.new_labels import combine
from zoo.ensemble.pool import HeldOut, Pool, fit_pool
from zoo.tasks.classification.held_out import FoldResults, HeldOutRows, rows_to_keep
from zoo.tasks.classification.multilabel import probabilities_of, row_scores

#: Weights are fitted to rows of the memory alone if there are at least as many.
_FEWEST_ROWS = 50
#: With fewer labelled rows than this, weights are fitted to cross-fitted rows of the memory as well.
_FEW_ROWS = 500


def refit(
    model: EnsembleModel,
    data: ClassificationDataModule,
    memory: Memory | None,
    rows: Rows | None,
    members: bool = False,
    is_own: bool = False,
) -> str:
    """Fit calibrations and weights again; duplicates of the memory or of training rows are skipped.

    Labels that the model lacks are an error, but for its own held-out rows (`is_own`): these are skipped, too.
    Without labelled rows, weights are fitted to cross-fitted rows of the memory, and kept where there are none.
    """
    network = model.network
    before: Pool | None = network.pool
    if before is None:
        raise InputError("zoo memory tune: the run stopped before its weights were fitted; train it again")
    model.read_memory(data, memory)
    model.search_memory(data, memory)  # also for members that have no weight yet
    if rows is not None and is_own:
        of_rows = [split_labels(label, model.spec.label_separator) for label in rows.labels or ()]
        kept = np.flatnonzero([set(labels) <= set(model.labels) for labels in of_rows])
        rows = rows.select(kept) if len(kept) else None
    labelled = None if rows is None else _labelled_rows(model, data, memory, rows)

    def classified() -> HeldOut | None:
        return None if labelled is None else classify_rows(model, data, *labelled[:2], network.names)

    held_out = classified()
    accuracy = None if held_out is None else _accuracy(before, held_out.known())
    if members:
        count = 0 if held_out is None else len(held_out.known().target)
        added, fitted = refit_members(model, data, memory, crosses=count < _FEW_ROWS)
        held_out = classified()
    else:
        added, fitted = _added_rows(model, data, memory), ""
    known = [] if held_out is None else [held_out.known()]
    if not known and sum(len(part.target) for part in added) < _FEWEST_ROWS:
        return (
            f"{fitted}the weights are as they were: there are no held-out rows, and fewer than {_FEWEST_ROWS} rows of"
            " the memory from which nothing was learned; to fit them, zoo memory tune with other labelled rows"
        )
    after = fit_pool(HeldOut.join([*known, *added]), before.class_weights)
    # The references were not fitted again.
    calibrations, rules = before.calibrations | after.calibrations, {**before.rules, **after.rules}
    network.pool = after = after._replace(calibrations=calibrations, rules=rules)
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in after.weights["all"].items())
    counts = [f"{len(part.target)}" for part in (*known, *added)]
    if labelled is None or held_out is None:
        own = HeldOut.join(added)
        model.held_out = _rows_to_keep(model, data, memory, None, own, [])
        measured = f"{network.sizes.measure} {_accuracy(after, own):.4f}"
        return (
            f"{fitted}weights {weights}; {measured} on the {counts[0]} rows of the memory that they were fitted on,"
            " each classified without it"
        )
    split, used, left_out = labelled
    model.held_out = _rows_to_keep(model, data, memory, split.rows.select(used), held_out, added)
    more = f" and {counts[1]} of the memory, each classified without it" if added else ""
    return (
        f"{fitted}weights {weights}; {network.sizes.measure} {accuracy:.4f} -> {_accuracy(after, known[0]):.4f} on the"
        f" {counts[0]} rows that they were fitted on{more}" + (f"; skipped: {left_out}" if left_out else "")
    )


def _labelled_rows(
    model: EnsembleModel, data: ClassificationDataModule, memory: Memory | None, rows: Rows
) -> tuple[TextSplit, NDArray[np.int64], str]:
    """Retrieve neighbors of rows; raise an `InputError` for labels that the model lacks, and if no row is left.

    Returns the split, the numbers of its rows without duplicates elsewhere, and a phrase on the others.
    """
    if rows.labels is None:
        raise InputError(f"{rows.source}: tuning needs labelled rows")
    if lacking := sorted(set(distinct_labels(rows.labels, model.spec.label_separator)) - set(model.labels)):
        raise InputError(f"{rows.source}: the model does not know the label {lacking[0]!r}; remove such rows")
    split = data.split_of(rows, memory)
    marks = data.marks_of(rows, split.neighbors, memory, data.seen)
    used, known = np.flatnonzero(marks.is_independent), set(model.spec.labels)
    labels = rows.select(used).labels or []
    if not any(known.issuperset(split_labels(label, model.spec.label_separator)) for label in labels):
        raise InputError(
            "zoo memory tune: all rows have duplicates in the memory or among the training rows, near ones included, or"
            " labels that only the memory has; tune on other rows"
        )
    return split, used, describe_left_out(left_out_of(marks))


def _accuracy(pool: Pool, held_out: HeldOut) -> float:
    answers = pool.answer("all", pool.combine(pool.calibrate(held_out.outputs)))
    return float(row_scores(answers, held_out.target).mean())


def _rows_to_keep(
    model: EnsembleModel,
    data: ClassificationDataModule,
    memory: Memory | None,
    labelled: Rows | None,
    held_out: HeldOut,
    added: Sequence[HeldOut],
) -> HeldOutRows | None:
    """The rows that stay with the model, with results by weights without their fold; None for a single row.

    Rows of the memory (None) stay without their texts.
    """
    network, parts = model.network, list[FoldResults]()
    for rows, pool in pools_by_fold(held_out, added, network.pool):
        if pool is None:
            return None
        outputs = held_out.select(rows).outputs
        logits, _ = combine(outputs, pool, network.rarity.cpu(), network.blank(len(rows)))
        familiarity = pool.familiarity(outputs, logits)
        parts.append((rows, probabilities_of(logits), pool.answer("all", logits), familiarity))
    given = model.labels, model.spec, memory, data.seed
    if labelled is not None:
        return rows_to_keep(parts, held_out.groups, labelled.labels, labelled.texts, *given)
    known, separator = np.array(model.labels, object), model.spec.label_separator
    labels = [separator.join(known[row > 0]) if separator else known[row] for row in held_out.target.numpy()]
    return rows_to_keep(parts, held_out.groups, labels, None, *given)


def _added_rows(model: EnsembleModel, data: ClassificationDataModule, memory: Memory | None) -> list[HeldOut]:
    """Outputs for the rows that were added to the memory after the members' fit; an empty list if there are none."""
    first = max(model.network.fitted_version, 1)
    if not isinstance(memory, FolderMemory) or memory.version <= first:
        return []
    rows = memory.rows.select(memory.opened.rows_since(first))
    split = data.split_of(rows, memory, exclude_duplicates=True)
    used = np.flatnonzero(data.marks_of(rows, split.neighbors, None, data.seen).is_independent)
    if len(used) == 0:
        return []
    added = classify_rows(model, data, split, used, model.network.names, excludes_duplicates=True).known()
    return [added] if len(added.target) else []


def refit_members(
    model: EnsembleModel, data: ClassificationDataModule, memory: Memory | None, crosses: bool
) -> tuple[list[HeldOut], str]:
    """Fit the members that need no gradients to the rows of a memory, except rows of classes that training lacked.

    Returns, with `crosses`, cross-fitted outputs for rows that the training lacked, if any; and the report's beginning.
    An `InputError` is raised if there is nothing to fit, or nothing to fit it on.
    """
    network = model.network
    if not isinstance(memory, FolderMemory):
        raise InputError("--refit reads all rows; an index of your own can only be searched; omit it")
    names = [name for name in network.names if network.members.by_name[name].has_fit]
    if not names:
        raise InputError("--refit fits members without gradients, and this model has none; omit it")
    target = model.targets(memory.rows)
    known = np.arange(len(target))
    if not network.sizes.multilabel:  # a set without labels of the training is one without labels
        known = np.flatnonzero((target >= 0) & (target < network.num_classes))
    if len(known) == 0:
        raise InputError(
            f"{memory.location()}: --refit needs rows with the labels of the training, and the memory has none; omit it"
        )
    rows, target = memory.rows.select(known), target[known]
    keys, seen = data.duplicate_keys(rows), data.seen
    split = data.split_of(rows, memory if crosses else None, exclude_duplicates=True)
    inputs = network.members.inputs_of(network.names) if crosses else set()
    readings = fit_members(model, data, split, target, network.applied, inputs)
    network.fitted_version = memory.version
    words = fold_hashes([] if network.guides is None else network.guides.named)
    lost = 0 if seen is None else int((~np.isin(seen, np.concatenate([keys, words]))).sum())
    less = f" (without {lost:,} training texts, which the memory lacks)" if lost else ""
    fitted = f"{', '.join(names)} fitted to {len(rows):,} rows of the memory{less}; "
    # An encoder that has learned from rows knows them; what is cross-fitted does not.
    marks = data.marks_of(rows, None, None, None if network.encoder_before is None else seen)
    near = group_near_duplicates(rows.texts[:], keys, split.neighbors)
    groups = near.first_rows(keys)
    usable = np.flatnonzero(~np.isin(groups, groups[marks.in_training]) & ~np.isin(keys, words))
    if not crosses or len(usable) == 0 or len(np.unique(groups)) == 1:
        return [], fitted
    readings = without_near_duplicates(readings.without_duplicates(), groups, near, split)
    return [cross_fit(readings, network.names, network.sizes, target, groups).select(usable)], fitted
