"""The stages of a fit after the encoder's training: the memory's vectors, the members, their weights, the answer.

Weights are fitted on rows that no member has learned from: the validation rows without duplicates or near-duplicates
elsewhere and, where these are few, cross-fitted training rows. A vote needs no folds: a training row retrieves neither
itself nor its duplicates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.batch import BatchContents
from datamodules.classification.dataset import UNKNOWN, label_numbers
from datamodules.core.errors import InputError
from datamodules.retrieval.memories.near_duplicates import have_near_duplicates
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.answer import Answer, AnswerScores, LeftOut, Line, number_groups
from zoo.ensemble.encoder_training import train_encoder
from zoo.ensemble.held_out import FOLDS, rows_of_fit, scores_of_rows
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.members import MEMBERS
from zoo.ensemble.metric import EncoderMetric, TunedFold
from zoo.ensemble.network import EnsembleNetwork, scores_of
from zoo.ensemble.outputs import Outputs
from zoo.ensemble.pool import COMBINATIONS, HeldOut, Pool, fit_pool, folds_of
from zoo.ensemble.tables import classify_table, read_table
from zoo.tasks.classification.held_out import HeldOutRows, HeldOutScores
from zoo.tasks.predictor import on_device

if TYPE_CHECKING:
    from zoo.ensemble.model import MemoryEnsemble

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

    def __init__(self, model: MemoryEnsemble, data: TextRowsDataModule[Any]) -> None:
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
        memory = self.data.memory if self.data.has_memory and "memory" in self._inputs else None
        self.model.search_memory(self.data, None if memory is None else memory.opened)
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

    @property
    def _inputs(self) -> set[Input]:
        return self.network.inputs_of(self.network.members)

    def _learn_metric(self) -> None:
        """Tune a frozen encoder, where that makes held-out rows more likely."""
        plan = self.model.metric_plan(len(self.target))
        if plan is None:
            return
        self.model.show_stage(f"stage 1 of 4: the encoder's metric is learned, {plan.steps} steps")
        metric = EncoderMetric(self.model, self.data, self.target, self.groups, plan)
        is_known = self.validation_target < self.network.num_classes
        texts = self.validation.rows.texts.take(self.validation_rows[is_known])
        is_better = metric.learn(None if self.crosses else (texts, self.validation_target[is_known]))
        self.metric = metric if is_better else None
        self.network.has_learned_metric = is_better
        if not is_better:
            log.info("the encoder classifies held-out rows better as it is: its metric is not learned")

    def _fit_members(self) -> Readings:
        """Fit members and references; return their inputs, and those that folds share, for the training rows."""
        inputs: set[Input] = set()
        if self.crosses:
            # An encoder that is trained by gradients is trained again for each fold, and reads its vectors then.
            inputs = self._inputs - ({"vectors"} if self.network.learns_by_gradients else set())
        has_vector = self.data.words.has_vector()
        return fit_members(self.model, self.data, self.training, self.target, inputs, has_vector)

    def _classify_validation(self) -> tuple[HeldOut, dict[str, Tensor]]:
        """Outputs of the members for the validation rows, and scores [n, C] of the references."""
        network = self.network
        network.excludes_duplicates = self.data.excludes_duplicates("validation")
        names = [*network.members, *network.references]
        readings = read_table(
            self.model, self.validation, network.inputs_of(names), rows=self.validation_rows
        )
        if network.excludes_duplicates:
            readings = readings._replace(excluded=network.excluded_rows(readings.texts))
        outputs = classify_table(network, readings, names, self.model.device)
        held_out = HeldOut(
            {name: outputs.pop(name) for name in network.members},
            torch.from_numpy(self.validation_target),
            self.data.duplicate_keys(self.validation.rows)[self.validation_rows],
        )
        return held_out, scores_of(outputs)

    def _cross_fit(self, readings: Readings) -> tuple[HeldOut | None, dict[str, Tensor]]:
        """Outputs for training rows by members fitted without their fold, and scores [n, C] of the references.

        None if `init_from` was trained on all; references are classified only where they are to be measured.
        """
        ids = self.data.own_ids("train", self.training.rows)
        readings = readings._replace(excluded=self.network.excluded_rows(readings.texts, ids))
        tuned = [] if self.metric is None else self.metric.folds
        folds = folds_of(self.target, len(tuned) or self.model.folds, self.groups)

        def classify(fold: int, rows: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, Outputs]:
            self.model.show_stage(f"weights: held-out predictions, fold {fold + 1} of {folds.max() + 1}")
            return self._classify_fold(readings, rows, others, tuned[fold] if tuned else None)

        crossed = cross_fit(self.target, self.groups, folds, classify).select(self._usable_training_rows())
        if len(crossed.target) == 0:
            return None, {}
        references = {name: each for name, each in crossed.outputs.items() if name in self.network.references}
        members = {name: crossed.outputs[name] for name in self.network.members}
        return crossed._replace(outputs=members), scores_of(references)

    def _usable_training_rows(self) -> NDArray[np.int64]:
        """The rows that `init_from` was not trained on, without near-duplicates unless all have some."""
        is_unseen = self.model.is_unseen(self.training)
        near = np.zeros(len(is_unseen), bool)
        if self.training.neighbors is not None:
            near = have_near_duplicates(self.training.rows.texts, self.training.neighbors)
        rows = np.flatnonzero(is_unseen & ~near)
        if len(rows) == 0:
            return np.flatnonzero(is_unseen)
        if len(self.validation_target) == 0:
            self.left_out = LeftOut(near=int((is_unseen & near).sum()))
        return rows

    def _classify_fold(
        self,
        readings: Readings,
        rows: NDArray[np.int64],
        others: NDArray[np.int64],
        tuned: TunedFold | None = None,
    ) -> dict[str, Outputs]:
        """Outputs for some rows by members that are fitted to the others; `tuned` has an encoder that is, too."""
        if tuned is not None:
            readings = readings._replace(vectors=torch.from_numpy(tuned.vectors))
        seen, held_out = readings.select(others), readings.select(rows)
        memory, target = self.network.memory, self.network.memory_target
        if not self.network.learns_by_gradients:
            fold = EnsembleNetwork(list(self.network.members), self.network.sizes)
            if tuned is not None and memory is not None and self.metric is not None:
                memory = memory.encoded_by(partial(self.metric.encode_by, tuned))
        else:
            fold = train_encoder(self.model, self.data, others)
            with self.model.using(fold):
                memory = None if memory is None else memory.encoded_by(self.model.encode)
                if "vectors" in fold.fitted_on(fold.members):
                    seen = self._with_vectors(seen, fold, others)
                held_out = self._with_vectors(held_out, fold, rows)
        fold.search(memory, target)
        names = [*fold.members, *([] if len(self.validation_target) else fold.references)]
        fold.fit(names, seen, self.target[others])
        device = self.model.device if self.network.learns_by_gradients else torch.device("cpu")
        return classify_table(fold, held_out, names, device)

    def _with_vectors(self, readings: Readings, fold: EnsembleNetwork, rows: NDArray[np.int64]) -> Readings:
        read = read_table(self.model, self.training, {"vectors"}, fold, rows)
        return readings._replace(vectors=read.vectors, logits=read.logits)

    def _measure(
        self, held_out: HeldOut, crossed: HeldOut | None, references: dict[str, Tensor]
    ) -> tuple[list[Line], str]:
        """The table's rows, and the condition of the weights: each group is classified without its own fold."""
        pool, num_classes = self.network.pool, self.network.num_classes
        assert pool is not None
        target = held_out.target.numpy()
        folds, scores = folds_of(target, FOLDS, held_out.groups), None
        pools, probabilities = list[Pool](), torch.zeros(len(folds), num_classes)
        groups = number_groups(held_out.groups, np.arange(len(folds)))
        condition = _FOLD_CONDITION if folds.max() + 1 == FOLDS else _ROW_CONDITION
        for fold in range(folds.max() + 1):
            rows = np.flatnonzero(folds == fold)
            others = held_out.select(np.flatnonzero(folds != fold)).known(num_classes)
            fitted_on = [part for part in (others, crossed) if part is not None and len(part.target)]
            if not fitted_on:
                condition = _NO_CONDITION
            fitted = _fit_pool(fitted_on) if fitted_on else pool
            logs = fitted.calibrate(held_out.select(rows).outputs)
            probabilities[rows] = fitted.combine(logs).softmax(dim=1)
            pools.append(fitted)
            table = fitted.table_rows(logs, {name: each[rows] for name, each in references.items()})
            # Every process has all rows.
            scores = scores or AnswerScores(list(table), groups, sync_on_compute=False)
            scores.update(table, held_out.target[rows], torch.from_numpy(rows), torch.ones(len(rows)))
        assert scores is not None
        if not len(held_out.known(num_classes).target):
            condition = _UNKNOWN_CONDITION
        if condition in (_FOLD_CONDITION, _ROW_CONDITION):
            results = scores_of_rows(probabilities, target)
            self.held_out = self._rows_to_keep(held_out, folds, [*pools, pool], results)
        lines = scores.lines(pool.weights["all"])
        return [replace(line, is_flattered=self._is_flattered(line.name, pool)) for line in lines], condition

    def _rows_to_keep(
        self, held_out: HeldOut, folds: NDArray[np.int64], pools: Sequence[Pool], scores: HeldOutScores
    ) -> HeldOutRows:
        """The rows of the table that stay with the model; texts of training rows do not."""
        if len(self.validation_target):
            rows = self.validation.rows.select(self.validation_rows)
            texts, labels = rows.texts, rows.labels
        else:
            texts, labels = None, [self.data.spec.labels[number] for number in held_out.target]
        assert labels is not None
        memory = self.data.memory.opened if self.data.memory is not None and self.data.has_memory else None
        return rows_of_fit(texts, labels, held_out, folds, pools, scores, memory, self.data.seed)

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


def fit_members(
    model: MemoryEnsemble,
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
    names = [*network.members, *network.references]
    readings = read_table(model, split, network.fitted_on(names) | inputs)
    network.fit(names, readings, target)
    return readings


def cross_fit(
    target: NDArray[np.int64],
    groups: NDArray[np.integer],
    folds: NDArray[np.int64],
    classify: Callable[[int, NDArray[np.int64], NDArray[np.int64]], dict[str, Outputs]],
) -> HeldOut:
    """Outputs for n rows, which `classify(fold, rows, others)` returns for the rows of a fold, fitted to the others."""
    parts, order = [], []
    for fold in range(folds.max() + 1):
        rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        parts.append(HeldOut(classify(fold, rows, others), torch.from_numpy(target[rows]), groups[rows]))
        order.append(rows)
    return HeldOut.join(parts).select(np.argsort(np.concatenate(order), kind="stable"))


def _fit_pool(held_out: Sequence[HeldOut]) -> Pool:
    """Fit a pool to validation rows of known labels, and to cross-fitted training rows if there are any."""
    rows = HeldOut.join(held_out)
    if len(rows.target) == 0:
        raise InputError(
            "no validation row has a label of the training rows, so no weight can be fitted; name other rows with"
            " --data.validation_file"
        )
    return fit_pool(rows)
