"""The stages of a fit after the encoder's training: the memory's vectors, the members, their weights, the answer.

Weights are fitted on rows that no member has learned from: the validation rows without duplicates or near-duplicates
elsewhere and, where these are few, cross-fitted training rows. A vote needs no folds: a training row retrieves neither
itself nor its duplicates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.batch import BatchContents
from datamodules.classification import UNKNOWN, label_numbers
from datamodules.core.errors import InputError
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from datamodules.retrieval.memories.near_duplicates import have_near_duplicates
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import Answer, AnswerScores, LeftOut, Line, number_groups
from zoo.ensemble.base import EnsembleModel, read_table
from zoo.ensemble.cross_fitting import FOLDS, Reader, ReadRows, classify, cross_fit, pools_by_fold
from zoo.ensemble.encoder_training import train_encoder
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.members import MEMBERS, Members
from zoo.ensemble.metric import EncoderMetric, TunedReader
from zoo.ensemble.network import EnsembleNetwork, scores_of
from zoo.ensemble.pool import COMBINATIONS, HeldOut, Pool, fit_pool, folds_of
from zoo.tasks.classification.held_out import HeldOutRows, rows_to_keep
from zoo.tasks.predictor import on_device

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


class EnsembleFit:
    """Fits everything but the encoder; each process does it by itself, with the same result."""

    def __init__(self, model: EnsembleModel, data: TextRowsDataModule[Any]) -> None:
        """Read the labels; the model has its best encoder, and the data is set up for the fit."""
        self.model, self.data = model, data
        self.network: EnsembleNetwork = model.network
        self.training, self.validation = data.split("train"), data.split("validation")
        self.target = label_numbers(self.training.rows, data.spec.labels)
        #: rows [n] of one group are duplicates, which cross-fitting keeps together.
        self.groups = data.duplicate_keys(self.training.rows)
        #: int64 [n], numbers of the validation rows that are used; the others measure memorization.
        self.validation_rows = self.validation.independent_rows
        target = label_numbers(self.validation.rows, data.spec.labels)[self.validation_rows]
        #: int64 [n], their classes; C = unknown to the model.
        self.validation_target = np.where(target == UNKNOWN, self.network.num_classes, target)
        #: the rows that the table does not count.
        self.left_out = LeftOut()
        if len(self.validation_rows):
            self.left_out = LeftOut.of(self.validation.duplicates)
        #: whether weights are fitted on training rows as well.
        self.crosses = bool((target >= 0).sum() < max(model.few_rows, 1))
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
        crossed, crossed_references = self._cross_fit(readings) if self.crosses else (None, {})
        if len(self.validation_target):
            split, (held_out, references) = "validation", self._classify_validation()
        elif crossed is not None:
            split, held_out, references, crossed = "training", crossed, crossed_references, None
        else:
            raise InputError(
                "model.init_from has seen all rows: name others, to fit weights, with --data.validation_file"
            )
        fitted_on = [held_out.known(network.num_classes), *([] if crossed is None else [crossed])]
        network.pool = _fit_pool(fitted_on)
        lines, conditions = self._measure(held_out, crossed, references)
        return Answer(split, lines, self._notes(fitted_on, split, lines, conditions), self.left_out)

    def _learn_metric(self) -> None:
        """Tune a frozen encoder, where that makes held-out rows more likely."""
        plan = self.model.metric_plan(len(self.target))
        if plan is None:
            return
        self.model.show_stage(f"stage 1 of 4: the encoder's metric is learned, {plan.steps} steps")
        encoder: Any = self.network.encoder
        data, model = self.data, self.model
        texts = self.training.rows.texts[:]
        tune = partial(model.tune_encoder, data, self.training, self.target, plan)
        encode = partial(model.encode, data)
        metric = EncoderMetric(
            encoder, tune, encode, plan.layers, self.network.sizes, texts, self.target, self.groups
        )
        is_known = self.validation_target < self.network.num_classes
        held_out = self.validation.rows.texts.take(self.validation_rows[is_known])
        is_better = metric.learn(None if self.crosses else (held_out, self.validation_target[is_known]))
        self.metric = metric if is_better else None
        # Half precision is enough to tune it again on parts of a memory, for an audit.
        before = {name: value.half() for name, value in metric.original.items()}
        self.network.encoder_before = before if is_better else None
        model.forget_digests()
        if not is_better:
            log.info("the encoder classifies held-out rows better as it is: its metric is not learned")

    def _fit_members(self) -> Readings:
        """Fit members and references; return their inputs, and those that folds share, for the training rows."""
        inputs: set[Input] = set()
        if self.crosses:
            # An encoder that is trained by gradients is trained again for each fold, and reads its vectors then.
            inputs = self.network.members.reads - ({"vectors"} if self.network.learns_by_gradients else set())
        has_vector = self.data.words.has_vector()
        return fit_members(self.model, self.data, self.training, self.target, inputs, has_vector)

    def _classify_validation(self) -> tuple[HeldOut, dict[str, Tensor]]:
        """Outputs of the members for the validation rows, and scores [n, C] of the references."""
        network = self.network
        network.excludes_duplicates = self.data.excludes_duplicates("validation")
        inputs = network.members.reads | network.references.reads
        readings = read_table(self.model, self.data, self.validation, inputs, rows=self.validation_rows)
        if network.excludes_duplicates:
            readings = readings._replace(excluded=network.excluded_rows(readings.texts))
        device = self.model.device
        held_out = HeldOut(
            classify(network.members, readings, device),
            torch.from_numpy(self.validation_target),
            self.data.duplicate_keys(self.validation.rows)[self.validation_rows],
        )
        return held_out, scores_of(classify(network.references, readings, device))

    def _cross_fit(self, readings: Readings) -> tuple[HeldOut | None, dict[str, Tensor]]:
        """Outputs for training rows by members fitted without their fold, and scores [n, C] of the references.

        None if `init_from` was trained on all; references are classified only where they are to be measured.
        """
        ids = self.data.own_ids("train", self.training.rows)
        network = self.network
        rows = ReadRows(
            readings._replace(excluded=network.excluded_rows(readings.texts, ids)),
            (network.memory, network.memory_target),
        )
        folds = folds_of(self.target, self.model.folds, self.groups)
        reader: Reader = rows
        if self.metric is not None:
            reader, folds = TunedReader(rows, self.metric), self.metric.fold_of_row()
        elif network.learns_by_gradients:
            reader = _TrainedReader(self.model, self.data, self.training, rows)
        self.model.show_stage(f"weights: held-out predictions, {folds.max() + 1} folds")
        names = [*network.members, *([] if len(self.validation_target) else network.references)]
        members = partial(Members, names, network.sizes)
        crossed = cross_fit(reader, members, self.target, self.groups, folds).select(
            self._usable_training_rows()
        )
        if len(crossed.target) == 0:
            return None, {}
        references = {name: crossed.outputs.pop(name) for name in names if name in network.references}
        return crossed, scores_of(references)

    def _usable_training_rows(self) -> NDArray[np.int64]:
        """The rows that `init_from` was not trained on, without near-duplicates unless all have some."""
        is_unseen = self.model.is_unseen(self.data, self.training)
        near = np.zeros(len(is_unseen), bool)
        if self.training.neighbors is not None:
            near = have_near_duplicates(self.training.rows.texts, self.training.neighbors)
        rows = np.flatnonzero(is_unseen & ~near)
        if len(rows) == 0:
            return np.flatnonzero(is_unseen)
        if len(self.validation_target) == 0:
            self.left_out = LeftOut(near=int((is_unseen & near).sum()))
        return rows

    def _measure(
        self, held_out: HeldOut, crossed: HeldOut | None, references: dict[str, Tensor]
    ) -> tuple[list[Line], str]:
        """The table's rows, and the condition of the weights: each group is classified without its own fold."""
        pool, num_classes = self.network.pool, self.network.num_classes
        assert pool is not None
        scores: AnswerScores | None = None
        probabilities = torch.zeros(len(held_out.target), num_classes)
        groups = number_groups(held_out.groups, np.arange(len(held_out.target)))
        pools = list(pools_by_fold(held_out, [] if crossed is None else [crossed], num_classes))
        condition = _FOLD_CONDITION if len(pools) == FOLDS else _ROW_CONDITION
        for rows, without in pools:
            if without is None:
                condition = _NO_CONDITION
            fitted = without or pool
            logs = fitted.calibrate(held_out.select(rows).outputs)
            probabilities[rows] = fitted.combine(logs).softmax(dim=1)
            table = fitted.table_rows(logs, {name: each[rows] for name, each in references.items()})
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
        if len(self.validation_target):
            rows = self.validation.rows.select(self.validation_rows)
            texts, names = rows.texts, rows.labels or []
        else:
            texts, names = None, [labels[number] for number in held_out.target]
        return rows_to_keep(
            texts, names, held_out.groups, labels, probabilities, len(labels), memory, data.seed
        )

    def _is_flattered(self, row: str, pool: Pool) -> bool:
        """Whether a row of the table reads the encoder, whose epoch was chosen by its accuracy on the table's rows."""
        has_choice = self.model.trains_encoder and (self.model.trainer.max_epochs or 0) > 1
        if not (len(self.validation_target) and has_choice):
            return False
        weights = {title: pool.weights.get(name, {}) for name, title in COMBINATIONS.items()}
        members = [name for name, weight in weights[row].items() if weight] if row in weights else [row]
        return any(name in self.network.members and "vectors" in MEMBERS[name].reads for name in members)

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
        if split == "training" and len(self.validation.rows):
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


@dataclass(frozen=True)
class _TrainedReader:
    """A `Reader` of the training rows whose encoder is trained by gradients: again, for each fold."""

    model: EnsembleModel
    data: TextRowsDataModule[Any]
    training: TextSplit
    #: the rows but for the encoder's vectors.
    rows: ReadRows

    def without(self, rows: NDArray[np.int64]) -> _FoldReader:
        """A reader by an encoder that was trained on the other rows."""
        others = np.setdiff1d(np.arange(len(self.training.rows)), rows)
        network = train_encoder(self.model, self.data, others)
        memory, target = self.rows.memory
        if memory is not None:
            with self.model.using(network):
                memory = memory.encoded_by(partial(self.model.encode, self.data))
        return _FoldReader(self, network, (memory, target))


class _FoldReader(NamedTuple):
    """A `FoldReader` by a network with an encoder of its own."""

    table: _TrainedReader
    network: EnsembleNetwork
    memory: tuple[EncodedMemory | None, Tensor | None]

    def read(self, rows: NDArray[np.int64], inputs: set[Input]) -> Readings:
        """The inputs of some rows."""
        table = self.table
        readings = table.rows.read(rows, inputs)
        if "vectors" not in inputs:
            return readings
        # Evaluation mode is switched on for the model's network: this one would read with dropout.
        with table.model.using(self.network):
            read = read_table(table.model, table.data, table.training, {"vectors"}, rows)
        return readings._replace(vectors=read.vectors, logits=read.logits)


def fit_members(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    target: NDArray[np.int64],
    inputs: set[Input],
    has_vector: Tensor | None,
) -> Readings:
    """Fit members and references to the rows of a split, and return their inputs, for the same rows.

    Args:
        model: its network has the members, and an encoder that stays as it is.
        data: prepares batches of the split.
        split: n rows.
        target: int64 [n], their classes.
        inputs: further ones that are returned.
        has_vector: bool [V], words with a pre-trained vector, for a bag.
    """
    network = model.network
    if network.bag is not None:
        assert has_vector is not None  # bags are made of pre-trained vectors only
        dataset = data.dataset(split, BatchContents(memory_texts=False))
        network.bag.fit((on_device(batch, model) for batch in dataset.batches(256)), has_vector)
    fitted_on = network.members.fitted_on | network.references.fitted_on
    readings = read_table(model, data, split, fitted_on | inputs)
    network.members.fit(readings, target)
    network.references.fit(readings, target)
    return readings


def _fit_pool(held_out: Sequence[HeldOut]) -> Pool:
    """Fit a pool to validation rows of known labels, and to cross-fitted training rows if there are any."""
    rows = HeldOut.join(held_out)
    if len(rows.target) == 0:
        raise InputError(
            "no validation row has a label of the training rows, so no weight can be fitted; name other rows with"
            " --data.validation_file"
        )
    return fit_pool(rows)
