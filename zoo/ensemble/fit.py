"""The stages of a fit: the encoder's metric, the memory's vectors, the members, their weights, the answer.

Members are fitted to all training rows. Weights are fitted on rows that no member has learned from: cross-fitted
training rows and, where the user keeps validation rows apart, those without duplicates or near-duplicates elsewhere. A
vote needs no folds: a training row retrieves neither itself nor its near-duplicates.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.batch import BatchContents
from datamodules.classification import UNKNOWN, ClassificationDataModule, label_numbers, targets_of
from datamodules.core.arrays import RowLookup
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.folding import fold_hashes
from datamodules.retrieval.memories.near_duplicates import group_near_duplicates
from datamodules.text_rows import TextSplit
from zoo.ensemble.answer import Answer, Line, left_out_of, lines_of
from zoo.ensemble.base import EnsembleModel, read_table
from zoo.ensemble.cross_fitting import FOLDS, classify, cross_fit, pools_by_fold
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.members import NAMED_ROWS
from zoo.ensemble.metric import EncoderMetric, seconds_to_encode
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.pool import HeldOut, Pool, fit_pool
from zoo.tasks.classification.guides import MOST_TEXTS, Guides, read_guides
from zoo.tasks.classification.held_out import FoldResults, rows_to_keep
from zoo.tasks.classification.multilabel import probabilities_of, row_scores
from zoo.tasks.predictor import on_device

log = logging.getLogger("zoo")

#: The weights with which a row of the table is classified.
_FOLD_CONDITION = (
    "each row of the table is classified with weights that were fitted without its part of the rows"
)
_NO_CONDITION = "some rows of the table had a part in the weights that classify them: no others are left"
_UNKNOWN_CONDITION = "the rows of the table have labels that training lacks, and count as errors"

_UNMEASURED = (
    "Nobody has measured this model in its training: no row had a label, and it has learned from words of labels, and"
    " from texts without labels, if given. zoo suggest names texts to label; from 50 labelled rows on, zoo memory add"
    " MODEL ROWS.csv --tune true measures and improves it, if it has a memory, and so does a fit with data.train_file."
)


class EnsembleFit:
    """Fits an ensemble; each process does it by itself, with the same result."""

    def __init__(self, model: EnsembleModel, data: ClassificationDataModule) -> None:
        """Read the labels; the data is set up for the fit."""
        self.model, self.data = model, data
        self.network: EnsembleNetwork = model.network
        self.training = data.split("train")
        self.target = targets_of(self.training.rows, data.spec)
        keys = data.duplicate_keys(self.training.rows)
        self.near = group_near_duplicates(self.training.rows.texts[:], keys, self.training.neighbors)
        #: rows [n] of one group are near-duplicates, which cross-fitting keeps together.
        self.groups = self.near.first_rows(keys)
        self.validation = data.split("validation")
        #: int64 [m], numbers of the validation rows that are used: the others measure memorization.
        self.used = self.validation.independent_rows
        self.class_weights = self._class_weights()
        #: of an encoder that was tuned; None = it is as it was.
        self.metric: EncoderMetric | None = None

    def run(self) -> Answer:
        """Run all stages, and return the table on the validation rows."""
        network, show = self.network, self.model.show_stage
        network.pool = None
        self.model.skipped, network.skipped = [], set()
        if self.data.options.is_described:
            self.model.deadline = math.inf  # its one member is fitted once
        self._limit_inputs()
        if len(self.target) > NAMED_ROWS * network.num_classes and set(network.names) != {"named"}:
            network.skipped.add("named")  # now and in later fits, whose folds have fewer rows
        if "guides" in network.members.fitted_on(network.used):
            network.guides = self._read_guides()
        self._learn_metric()
        show("stage 2 of 4: the memory is encoded")
        self.model.search_memory(self.data, self.data.open_memory() if "memory" in network.reads else None)
        show("stage 3 of 4: members are fitted")
        published = None if self.metric is None else torch.from_numpy(self.published)
        given = self.training, self.target, network.used, network.reads, published
        readings = fit_members(self.model, self.data, *given)
        if self.data.options.is_described:
            votes = [name for name in network.names if not network.members.by_name[name].has_fit]
            network.pool = Pool.alone("self_trained", votes)._replace(class_weights=self.class_weights)
            return Answer("training", [], [_UNMEASURED], left_out_of(None))
        # Folds take what all rows have chosen.
        for member in network.members.by_name.values():
            network.sizes = network.sizes._replace(**member.chosen)
        show("stage 4 of 4: weights are fitted on held-out rows")
        split, held_out, added = "training", self._cross_fit(readings), list[HeldOut]()
        if len(self.used):
            excludes = self.data.excludes_duplicates("validation")
            split, added = "validation", [held_out]
            rows = self.validation, self.used
            held_out = classify_rows(self.model, self.data, *rows, network.used, excludes)
        fitted_on = [held_out.known(), *added]
        network.pool = fit_pool(HeldOut.join(fitted_on), self.class_weights)
        lines, condition = self._measure(held_out, added)
        notes = self._notes(fitted_on, split, condition)
        left_out = left_out_of(self.validation.duplicates if len(self.used) else None)
        return Answer(split, lines, notes, left_out, network.sizes.measure)

    def _limit_inputs(self) -> None:
        """Skip the members that read vectors, if there is no time to encode texts and memories."""
        network, texts, members = self.network, self.training.rows.texts, self.network.members.by_name
        if network.encoder is None or self.model.deadline == math.inf:
            return
        keys = [fold_hashes(texts), fold_hashes(self.validation.rows.texts)]
        if isinstance(memory := self.data.open_memory(), FolderMemory) and "memory" in network.reads:
            keys.append(memory.opened.lookup.keys_by_row())
        number = len(np.unique(np.concatenate(keys)))
        mixed = texts.take(np.random.default_rng(0).permutation(len(texts)))
        seconds = seconds_to_encode(mixed, number, partial(self.model.encode, self.data))
        readers = [name for name in members if "vectors" in members[name].reads]
        stage = f"vectors of the transformer, for {', '.join(readers)}"
        if set(network.names) - set(readers) and not self.model.has_time(stage, seconds):
            network.skipped.update(readers)

    @cached_property
    def published(self) -> NDArray[np.float32]:
        """float32 [n, l], vectors of the training rows by the encoder before it is tuned."""
        return self.model.encode(self.data, self.training.rows.texts[:])

    def _read_guides(self) -> Guides:
        """The texts that classes are described by, and those without labels; without those that would mislead."""
        reads_vectors = "self_trained" in self.network.used
        guides = read_guides(self.data, self.data.spec.labels, unlabelled=reads_vectors)
        if not reads_vectors:
            return guides
        encode = partial(self.model.encode, self.data)
        guides = guides.encoded_by(encode)
        if self.data.options.is_described:
            return guides._replace(stand_alone=True)
        rows = np.random.default_rng(0).permutation(len(self.target))[:MOST_TEXTS]
        is_tuned = bool(self.model.metric_plans(len(self.target)))
        vectors = self.published[rows] if is_tuned else encode(self.training.rows.texts.take(rows))
        return guides.without_misleading(vectors, self.target[rows]).without_foreign(vectors)

    def _learn_metric(self) -> None:
        """Tune the encoder, where that makes held-out rows more likely."""
        network = self.network
        guides = network.guides if "self_trained" in network.used else None
        number = 0 if guides is None else len(guides.texts)
        plans = self.model.metric_plans(len(self.target) + number)
        if self.data.options.is_described or not plans or "vectors" not in network.reads:
            return
        self.model.show_stage("stage 1 of 4: the encoder's metric is learned")
        given = self.training, self.target, self.groups, plans, network.sizes
        metric = EncoderMetric(self.model, self.data, *given, guides=guides if number else None)
        network.metric_plan = metric.learn(self.published)
        self.model.forget_digests()
        if network.metric_plan is None:
            network.encoder_before = None
            log.info("the encoder is as it was: its metric does not make held-out rows more likely")
            return
        log.info("the encoder's metric is learned: %s", network.metric_plan)
        self.metric = metric
        # Half precision is enough to tune it again on parts of a memory, for an audit.
        network.encoder_before = {name: value.half() for name, value in metric.original.items()}

    def _class_weights(self) -> Sequence[float]:
        """Logs [C], with the mean 0, of the weights that the option sets or, "balanced", of 1 / rows of a class."""
        wanted, labels = self.model.class_weight, self.data.spec.labels
        if not wanted:
            return ()
        if wanted == "balanced":
            logs = -np.log(np.maximum(np.bincount(self.target, minlength=len(labels)), 1))
        else:
            if unknown := set(wanted) - set(labels):
                raise InputError(f"model.class_weight: no training row has the label {min(unknown)!r}")
            logs = np.log([wanted.get(label, 1.0) for label in labels])
        return [float(log) for log in logs - logs.mean()]

    def _cross_fit(self, readings: Readings) -> HeldOut:
        """Outputs for training rows by members, and references, fitted without their fold."""
        network = self.network
        readings = readings.without_duplicates(self.data.own_ids("train", self.training.rows))
        readings = without_near_duplicates(readings, self.groups, self.near, self.training)
        tuned = None if self.metric is None else (self.metric.fold_of_row, self.metric.read_without)
        needs_all = network.sizes.multilabel or not len(self.used)
        names = network.used if needs_all else network.names
        return cross_fit(readings, names, network.sizes, self.target, self.groups, tuned)

    def _measure(self, held_out: HeldOut, added: Sequence[HeldOut]) -> tuple[list[Line], str]:
        """The table's rows, and the condition of the weights: each group is classified without its own fold."""
        pool: Pool | None = self.network.pool
        assert pool is not None
        parts: list[FoldResults] = []
        scores: dict[str, list[Tensor]] = {}
        condition = _FOLD_CONDITION
        for rows, without in pools_by_fold(held_out, added, pool):
            if without is None:
                condition = _NO_CONDITION
            part, fitted = held_out.select(rows), without or pool
            logits = fitted.table_logits(part.outputs)
            table = fitted.answers(logits)
            familiarity = fitted.familiarity(part.outputs, logits["all"])
            parts.append((rows, probabilities_of(logits["all"]), table["all"], familiarity))
            for name, answers in table.items():
                scores.setdefault(name, []).append(row_scores(answers, part.target, part.unknown))
        if not len(held_out.known().target):
            condition = _UNKNOWN_CONDITION
        if condition == _FOLD_CONDITION:
            data, kept = self.data, self.validation.rows.select(self.used)
            # Texts of training rows do not stay with the model.
            labels, texts = (kept.labels, kept.texts) if len(kept) else (self.training.rows.labels, None)
            given = data.spec.labels, data.spec, data.open_memory(), data.seed
            self.model.held_out = rows_to_keep(parts, held_out.groups, labels, texts, *given)
        keys = held_out.groups[np.concatenate([rows for rows, *_ in parts])]
        table_scores = {name: torch.cat(each).numpy() for name, each in scores.items()}
        return lines_of(table_scores, keys, pool.weights["all"]), condition

    def _notes(self, fitted_on: Sequence[HeldOut], split: str, condition: str) -> list[str]:
        """The conditions of the table."""
        network = self.network
        assert network.pool is not None
        names = ["validation rows", "training rows, each classified by members that were fitted without it"]
        counts = [len(part.distinct().target) for part in fitted_on]
        named = zip(counts, names[split == "training" :], strict=False)
        rows = " and ".join(f"{count:,} {name}" for count, name in named if count)
        notes = [f"Weights are fitted on {rows}; {condition}."]
        if split == "training" and len(self.validation.rows):
            notes.append("No validation row can be counted: all have duplicates elsewhere, or near ones.")
        if network.pool.class_weights:
            notes.append("All but references are weighted by model.class_weight; here errors count equally.")
        if self.model.skipped:
            notes.append(f"Skipped for --time_limit: {'; '.join(self.model.skipped)}.")
        if unused := [name for name, weight in network.pool.weights["all"].items() if not weight]:
            notes.append(f"Weight 0, since held-out rows do not speak for them: {', '.join(unused)}.")
        unusable = self.model.unusable.items()
        notes += [f"Not used, since {reason}: {', '.join(names)}." for reason, names in unusable]
        if "dense_vote" in network.members and network.memory is None:
            notes.append("The dense vote is empty: an existing index cannot be searched by this encoder.")
        return notes


def classify_rows(
    model: EnsembleModel,
    data: ClassificationDataModule,
    split: TextSplit,
    rows: NDArray[np.int64],
    names: Sequence[str],
    excludes_duplicates: bool = False,
) -> HeldOut:
    """Outputs of some members and references, as they are now, for labelled rows that they have not learned from."""
    network: EnsembleNetwork = model.network
    labelled, spec = split.rows.select(rows), model.spec
    numbers = label_numbers(labelled, spec.labels, spec.label_separator)
    is_unknown = numbers[:, None] < 0 if spec.label_separator is None else numbers == UNKNOWN
    target = model.targets(labelled)
    target = np.where(target == UNKNOWN, network.num_classes, target)
    readings = read_table(model, data, split, network.members.inputs_of(names), rows)
    if excludes_duplicates:
        readings = readings.without_duplicates()
    outputs = classify(network.members, names, readings, model.device)
    groups = data.duplicate_keys(split.rows)[rows]
    return HeldOut(outputs, torch.from_numpy(target), groups, torch.from_numpy(is_unknown.sum(axis=1)))


def without_near_duplicates(
    readings: Readings, groups: NDArray[np.int32], near: RowLookup, split: TextSplit
) -> Readings:
    """The inputs for all rows of a split, of which none retrieves a text of its own group [n]; `near` has all."""
    if readings.neighbors is not None and split.neighbors is not None:
        of_memory = np.append(near.first_rows(fold_hashes(split.neighbors.memories.texts)), -1)
        others = torch.from_numpy(of_memory[split.neighbors.rows] != groups[:, None])
        votes = replace(readings.neighbors, mask=readings.neighbors.mask & others)
        readings = readings._replace(neighbors=votes)
    if readings.memory is not None and readings.excluded is not None:
        of_row = near.first_rows(readings.memory.encoded.memory.opened.lookup.keys_by_row())
        own = RowLookup.of(of_row.astype(np.uint64)).all_rows(groups.astype(np.uint64))
        excluded = [np.union1d(*parts) for parts in zip(readings.excluded, own, strict=True)]
        readings = readings._replace(excluded=excluded)
    return readings


def fit_members(
    model: EnsembleModel,
    data: ClassificationDataModule,
    split: TextSplit,
    target: NDArray[np.int64],
    names: Sequence[str],
    inputs: set[Input],
    published: Tensor | None = None,
) -> Readings:
    """Fit some members and references to n rows, and return their inputs and further ones, for the same rows.

    The encoder stays as it is. `published`, float32 [n, l], are vectors by the encoder before it was tuned, if known.
    """
    network = model.network
    named = network.guides.named if network.guides is not None and "named" in network.used else []
    ngrams = network.ngrams.fit([*split.rows.texts, *named])
    if network.bag is not None:
        # Words without a pre-trained vector have the weight 0, also in later fits, which have no file of vectors.
        has_vector = data.words.has_vector()
        has_vector = network.bag.idf.cpu() > 0 if has_vector is None else has_vector
        dataset = data.dataset(split, BatchContents(memory_texts=False))
        network.bag.fit((on_device(batch, model) for batch in dataset.batches(256)), has_vector)
    inputs = network.members.fitted_on(names) | inputs
    known: PlainDict = {"ngrams": [part[: len(target)] for part in ngrams]}
    known |= {} if published is None else {"published": published}
    readings = read_table(model, data, split, inputs - known.keys())._replace(**known)
    _fit_in_time(model, names, readings, target)
    return readings


def _fit_in_time(
    model: EnsembleModel, names: Sequence[str], readings: Readings, target: NDArray[np.int64]
) -> None:
    """Fit members and references, first those that cost nothing; skip one that there is no time to cross-fit."""
    network: EnsembleNetwork = model.network
    crossing, is_first = 0.0, True
    used = [network.members.by_name[name] for name in names]
    for member in sorted(used, key=lambda each: each.has_fit):
        begun = time.monotonic()
        if is_first or model.has_time(member.title, crossing):
            member.fit(readings, target)
            own = FOLDS * member.further * (time.monotonic() - begun)
            if is_first or model.has_time(f"cross-fitting of {member.title}", crossing + own):
                crossing, is_first = crossing + own, False
                continue
        network.skipped.add(member.name)
