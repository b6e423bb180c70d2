"""The stages of a fit after the encoder's training: the memory's vectors, the members, their weights, the answer.

Weights are fitted on rows that no member has learned from: the validation rows without duplicates or near-duplicates
elsewhere and, where these are few, cross-fitted training rows. A vote needs no folds: a training row retrieves neither
itself nor its duplicates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.batch import BatchContents
from datamodules.classification import UNKNOWN, label_numbers
from datamodules.core.errors import InputError
from datamodules.duplicates import decode_keys
from datamodules.retrieval.memories.near_duplicates import have_near_duplicates
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import Answer, AnswerScores, LeftOut, Line, number_groups
from zoo.ensemble.base import EnsembleModel, read_table
from zoo.ensemble.cross_fitting import FOLDS, classify, cross_fit, pools_by_fold
from zoo.ensemble.encoder_training import train_encoder
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.members import Members
from zoo.ensemble.metric import EncoderMetric
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.pool import COMBINATIONS, HeldOut, Pool, fit_pool, folds_of
from zoo.tasks.classification.held_out import HeldOutRows, rows_to_keep
from zoo.tasks.predictor import on_device
from zoo.training.checkpoints import meta_of_start

log = logging.getLogger("zoo")

#: The weights with which a row of the table is classified.
_FOLD_CONDITION = (
    "each row of the table is classified with weights that were fitted without its fifth of the rows"
)
_ROW_CONDITION = "each row of the table is classified with weights that were fitted without it"
_NO_CONDITION = (
    "some rows of the table had a part in the weights that classify them, since no others are left"
)
_UNKNOWN_CONDITION = "the rows of the table have labels that training lacks, and count as errors"


class LabelledRows(NamedTuple):
    """Rows of known labels that members have not learned from: weights are fitted to them, and measured on them."""

    split: TextSplit
    #: int64 [n], numbers of the rows that are used.
    rows: NDArray[np.int64]
    #: int64 [n], their classes; C and above for those that the members do not know.
    target: NDArray[np.int64]
    #: the rows that are not used.
    left_out: LeftOut = LeftOut()


class EnsembleFit:
    """Fits everything but the encoder; each process does it by itself, with the same result."""

    def __init__(self, model: EnsembleModel, data: TextRowsDataModule[Any]) -> None:
        """Read the labels; the model has its best encoder, and the data is set up for the fit."""
        self.model, self.data = model, data
        self.network: EnsembleNetwork = model.network
        self.training = data.split("train")
        self.target = label_numbers(self.training.rows, data.spec.labels)
        #: rows [n] of one group are duplicates, which cross-fitting keeps together.
        self.groups = data.duplicate_keys(self.training.rows)
        split = data.split("validation")
        rows = split.independent_rows  # the others measure memorization
        target = label_numbers(split.rows, data.spec.labels)[rows]
        left_out = LeftOut.of(split.duplicates) if len(rows) else LeftOut()
        target = np.where(target == UNKNOWN, self.network.num_classes, target)
        self.validation = LabelledRows(split, rows, target, left_out)
        #: whether weights are fitted on training rows as well.
        self.crosses = bool((target < self.network.num_classes).sum() < max(model.few_rows, 1))
        #: of a frozen encoder that was tuned; None = it is as it was, or trained by gradients.
        self.metric: EncoderMetric | None = None
        #: the rows of the table, which stay with the model; None where they had a part in the weights.
        self.held_out: HeldOutRows | None = None

    def run(self) -> Answer:
        """Run all stages, and return the table on the validation rows."""
        network, show = self.network, self.model.show_stage
        network.pool = None
        self._learn_metric()
        show("stage 2 of 4: the memory is encoded")
        self.model.search_memory(
            self.data, self.data.open_memory() if "memory" in network.members.reads else None
        )
        show("stage 3 of 4: members are fitted")
        readings = self._fit_members()
        show("stage 4 of 4: weights are fitted on held-out rows")
        crossed = self._cross_fit(readings) if self.crosses else None
        if len(self.validation.rows):
            excludes = self.data.excludes_duplicates("validation")
            split, held_out = "validation", classify_rows(self.model, self.data, self.validation, excludes)
        elif crossed is not None:
            split, held_out, crossed = "training", crossed, None
        else:
            raise InputError(
                "model.init_from has seen all rows: name others, to fit weights, with --data.validation_file"
            )
        added = [] if crossed is None else [crossed]
        fitted_on = [held_out.known(network.num_classes), *added]
        if not any(len(part.target) for part in fitted_on):
            raise InputError(
                "no validation row has a label of the training rows, so no weight can be fitted; name other rows with"
                " --data.validation_file"
            )
        network.pool = fit_pool(HeldOut.join(fitted_on))
        lines, conditions = self._measure(held_out, added)
        notes = self._notes(fitted_on, split, lines, conditions)
        return Answer(split, lines, notes, self.validation.left_out)

    def _learn_metric(self) -> None:
        """Tune a frozen encoder, where that makes held-out rows more likely."""
        plan = self.model.metric_plan(len(self.target))
        if plan is None:
            return
        self.model.show_stage(f"stage 1 of 4: the encoder's metric is learned, {plan.steps} steps")
        sizes = self.network.sizes
        metric = EncoderMetric(self.model, self.data, self.training, self.target, plan, sizes)
        split, rows, target, _ = self.validation
        is_known = target < self.network.num_classes
        held_out = split.rows.texts.take(rows[is_known]), target[is_known]
        is_better = metric.learn(None if self.crosses else held_out)
        self.metric = metric if is_better else None
        # Half precision is enough to tune it again on parts of a memory, for an audit.
        before = {name: value.half() for name, value in metric.original.items()}
        self.network.encoder_before = before if is_better else None
        self.model.forget_digests()
        if not is_better:
            log.info("the encoder classifies held-out rows better as it is: its metric is not learned")

    def _fit_members(self) -> Readings:
        """Fit members and references; return their inputs, and those that folds share, for the training rows."""
        inputs: set[Input] = set()
        if self.crosses:
            # An encoder that is trained by gradients is trained again for each fold, and reads its vectors then.
            inputs = self.network.members.reads - ({"vectors"} if self.network.learns_by_gradients else set())
        return fit_members(
            self.model, self.data, self.training, self.target, inputs, self.data.words.has_vector()
        )

    def _cross_fit(self, readings: Readings) -> HeldOut | None:
        """Outputs for training rows by members fitted without their fold; None if `init_from` was trained on all.

        References are among them where training rows are measured.
        """
        network = self.network
        readings = readings.without_duplicates(self.data.own_ids("train", self.training.rows))
        folds, read_without = folds_of(self.target, self.model.folds, self.groups), None
        if self.metric is not None:
            folds, read_without = self.metric.fold_of_row, self.metric.read_without
        elif network.learns_by_gradients:
            read_without = self._read_without
        self.model.show_stage(f"weights: held-out predictions, {folds.max() + 1} folds")
        names = network.names if len(self.validation.rows) else list(network.members)
        crossed = cross_fit(
            readings, names, network.sizes, self.target, self.groups, folds, read_without
        ).select(self._usable_training_rows())
        return crossed if len(crossed.target) else None

    def _read_without(self, readings: Readings, rows: NDArray[np.int64]) -> Readings:
        """The inputs for the training rows by an encoder that was trained without a fold; see `cross_fit`."""
        others = np.setdiff1d(np.arange(len(self.target)), rows)
        with self.model.using(train_encoder(self.model, self.data, others)):
            memory = readings.memory
            if memory is not None:
                memory = memory.encoded_by(partial(self.model.encode, self.data))
            read = read_table(self.model, self.data, self.training, {"vectors"})
        return readings._replace(vectors=read.vectors, logits=read.logits, memory=memory)

    def _usable_training_rows(self) -> NDArray[np.int64]:
        """The rows that `init_from` was not trained on, without near-duplicates unless all have some."""
        is_unseen, near = np.ones(len(self.target), bool), np.zeros(len(self.target), bool)
        if self.model.init_from is not None:
            seen = decode_keys(meta_of_start(self.model.init_from).data.seen)
            is_unseen = is_unseen if seen is None else ~np.isin(self.groups, seen)
        if self.training.neighbors is not None:
            near = have_near_duplicates(self.training.rows.texts, self.training.neighbors)
        rows = np.flatnonzero(is_unseen & ~near)
        if len(rows) == 0:
            return np.flatnonzero(is_unseen)
        if len(self.validation.rows) == 0:
            self.validation = self.validation._replace(left_out=LeftOut(near=int((is_unseen & near).sum())))
        return rows

    def _measure(self, held_out: HeldOut, added: Sequence[HeldOut]) -> tuple[list[Line], str]:
        """The table's rows, and the condition of the weights: each group is classified without its own fold."""
        pool, num_classes = self.network.pool, self.network.num_classes
        assert pool is not None
        scores: AnswerScores | None = None
        probabilities = torch.zeros(len(held_out.target), num_classes)
        groups = number_groups(held_out.groups, np.arange(len(held_out.target)))
        pools = list(pools_by_fold(held_out, added, num_classes))
        condition = _FOLD_CONDITION if len(pools) == FOLDS else _ROW_CONDITION
        for rows, without in pools:
            if without is None:
                condition = _NO_CONDITION
            table = (without or pool).table_rows(held_out.select(rows).outputs)
            probabilities[rows] = table["all"].softmax(dim=1)
            # Every process has all rows.
            scores = scores or AnswerScores(list(table), groups, sync_on_compute=False)
            scores.update(table, held_out.target[rows], torch.from_numpy(rows), torch.ones(len(rows)))
        assert scores is not None
        if not len(held_out.known(num_classes).target):
            condition = _UNKNOWN_CONDITION
        if condition in (_FOLD_CONDITION, _ROW_CONDITION):
            self.held_out = self._rows_to_keep(held_out, probabilities)
        lines = scores.lines(pool.weights["all"])
        return [replace(line, is_flattered=self._is_flattered(line.name, pool)) for line in lines], condition

    def _rows_to_keep(self, held_out: HeldOut, probabilities: Tensor) -> HeldOutRows:
        """The rows of the table that stay with the model; texts of training rows do not."""
        data, labels = self.data, self.data.spec.labels
        memory = data.open_memory()
        if len(self.validation.rows):
            rows = self.validation.split.rows.select(self.validation.rows)
            texts, names = rows.texts, rows.labels or []
        else:
            texts, names = None, [labels[number] for number in held_out.target]
        return rows_to_keep(
            texts, names, held_out.groups, labels, probabilities, len(labels), memory, data.seed
        )

    def _is_flattered(self, row: str, pool: Pool) -> bool:
        """Return whether a row of the table reads the encoder, whose epoch was chosen by the accuracy on these rows."""
        has_choice = self.model.trains_encoder and (self.model.trainer.max_epochs or 0) > 1
        if not (len(self.validation.rows) and has_choice):
            return False
        weights = {title: pool.weights.get(name, {}) for name, title in COMBINATIONS.items()}
        members = [name for name, weight in weights[row].items() if weight] if row in weights else [row]
        return any("vectors" in self.network.members.by_name[name].reads for name in members)

    def _notes(
        self, fitted_on: Sequence[HeldOut], split: str, lines: Sequence[Line], condition: str
    ) -> list[str]:
        """The conditions of the table."""
        network = self.network
        assert network.pool is not None
        names = ["validation rows", "training rows, each classified by members that were fitted without it"]
        counts = [len(part.distinct().target) for part in fitted_on]
        rows = " and ".join(
            f"{count:,} {name}"
            for count, name in zip(counts, names[split == "training" :], strict=False)
            if count
        )
        notes = [f"Weights are fitted on {rows}; {condition}."]
        if split == "training" and len(self.validation.split.rows):
            notes.append(
                "No validation row can be counted: all have duplicates elsewhere, near ones included."
            )
        if any(line.is_flattered for line in lines):
            notes.append(
                "* The encoder's epoch was chosen by its accuracy on these rows: its figures are a little too high."
            )
        if unused := [name for name, weight in network.pool.weights["all"].items() if not weight]:
            notes.append(f"Weight 0, since the others do as well without: {', '.join(unused)}.")
        notes += [
            f"Not used, since {reason}: {', '.join(names)}." for reason, names in self.model.unusable.items()
        ]
        if "dense_vote" in network.members and network.memory is None:
            notes.append(
                "The dense vote is empty: an existing index cannot be searched by this encoder's vectors."
            )
        return notes


def classify_rows(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    labelled: LabelledRows,
    excludes_duplicates: bool = False,
) -> HeldOut:
    """Outputs of members and references, as they are now, for labelled rows."""
    split, rows, target, _ = labelled
    members: Members = model.network.members
    readings = read_table(model, data, split, members.reads, rows)
    if excludes_duplicates:
        readings = readings.without_duplicates()
    outputs = classify(members, readings, model.device)
    return HeldOut(outputs, torch.from_numpy(target), data.duplicate_keys(split.rows)[rows])


def fit_members(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    target: NDArray[np.int64],
    inputs: set[Input],
    has_vector: Tensor | None = None,
) -> Readings:
    """Fit members and references to the rows of a split, and return their inputs, for the same rows.

    Args:
        model: its network has the members, and an encoder that stays as it is.
        data: prepares batches of the split.
        split: n rows.
        target: int64 [n], their classes.
        inputs: further ones that are returned.
        has_vector: bool [V], words with a pre-trained vector, for a bag; None = those of its last fit.
    """
    network = model.network
    if network.bag is not None:
        # Words without a pre-trained vector have the weight 0.
        has_vector = network.bag.idf.cpu() > 0 if has_vector is None else has_vector
        dataset = data.dataset(split, BatchContents(memory_texts=False))
        network.bag.fit((on_device(batch, model) for batch in dataset.batches(256)), has_vector)
    readings = read_table(model, data, split, network.members.fitted_on | inputs)
    network.members.fit(readings, target)
    return readings
