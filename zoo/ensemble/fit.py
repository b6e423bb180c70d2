"""The stages of a fit after the encoder's training: the memory's vectors, the members, their weights, the answer.

Weights are fitted on rows that no member has learned from: the validation rows and, where these are few, cross-fitted
training rows. A vote needs no folds: a training row retrieves neither itself nor its duplicates.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import BatchContents
from datamodules.classification.dataset import UNKNOWN, label_numbers
from datamodules.core.errors import InputError
from datamodules.sampling import LengthBucketSampler
from datamodules.text_rows import TextRowsDataModule
from zoo.ensemble.answer import Answer, AnswerScores, Line
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.metric import EncoderMetric, TunedFold
from zoo.ensemble.network import EnsembleNetwork, scores_of
from zoo.ensemble.pool import HeldOut, Pool, fit_pool, folds_of
from zoo.ensemble.tables import classify_table, read_table
from zoo.tasks.predictor import on_device
from zoo.training.trained_parts import freeze_parts, parameter_groups

if TYPE_CHECKING:
    from zoo.ensemble.model import MemoryEnsemble

log = logging.getLogger("zoo")

#: Folds of the validation rows for the answer's table.
_TABLE_FOLDS = 5


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
        target = label_numbers(self.validation.rows, data.spec.labels)
        #: int64 [n], classes of the validation rows; C = unknown to the model.
        self.validation_target = np.where(target == UNKNOWN, self.network.num_classes, target)
        #: whether weights are fitted on training rows as well.
        self.crosses = bool((target >= 0).sum() < max(model.few_rows, 1))
        #: of a frozen encoder that was tuned; None = it is as it was, or trained by gradients.
        self.metric: EncoderMetric | None = None

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
        num_crossed = 0 if crossed is None else len(crossed.target)
        if len(self.validation_target):
            split, (held_out, references) = "validation", self._classify_validation()
        elif crossed is not None:
            split, held_out, references, crossed = "training", crossed, crossed_references, None
        else:
            raise InputError(
                "model.init_from has seen all rows: name others, to fit weights, with --data.validation_file"
            )
        network.pool = _fit_pool(held_out, crossed, network.num_classes)
        lines = self._measure(held_out, crossed, references)
        return Answer(split, lines, self._notes(num_crossed))

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
        texts = self.validation.rows.texts.take(np.flatnonzero(is_known))
        is_better = metric.learn(None if self.crosses else (texts, self.validation_target[is_known]))
        self.metric = metric if is_better else None
        if not is_better:
            log.info("the encoder classifies held-out rows better as it is: its metric is not learned")

    def _fit_members(self) -> Readings:
        """Fit members and references; return their inputs, and those that folds share, for the training rows."""
        network = self.network
        if network.bag is not None:
            has_vector = self.data.words.has_vector()
            assert has_vector is not None  # bags are made of pre-trained vectors only
            contents = BatchContents(memory_texts=False)
            dataset = self.data.dataset(self.training, contents)
            network.bag.fit((on_device(batch, self.model) for batch in dataset.batches(256)), has_vector)
        names = [*network.members, *network.references]
        inputs = network.fitted_on(names)
        if self.crosses:
            # An encoder that is trained by gradients is trained again for each fold, and reads its vectors then.
            inputs |= self._inputs - ({"vectors"} if network.learns_by_gradients else set())
        readings = read_table(self.model, self.training, inputs)
        network.fit(names, readings, self.target)
        return readings

    def _classify_validation(self) -> tuple[HeldOut, dict[str, Tensor]]:
        """Outputs of the members for the validation rows, and scores [n, C] of the references."""
        network = self.network
        network.excludes_duplicates = self.data.excludes_duplicates("validation")
        names = [*network.members, *network.references]
        readings = read_table(self.model, self.validation, network.inputs_of(names))
        if network.excludes_duplicates:
            readings = readings._replace(excluded=network.excluded_rows(readings.texts))
        outputs = classify_table(network, readings, names, self.model.device)
        held_out = HeldOut(
            {name: outputs.pop(name) for name in network.members}, torch.from_numpy(self.validation_target)
        )
        return held_out, scores_of(outputs)

    def _cross_fit(self, readings: Readings) -> tuple[HeldOut | None, dict[str, Tensor]]:
        """Outputs for training rows by members fitted without their fold, and scores [n, C] of the references.

        None if `init_from` was trained on all; references are classified only where they are to be measured.
        """
        ids = self.training.rows.ids
        readings = readings._replace(excluded=self.network.excluded_rows(readings.texts, ids))
        tuned = [] if self.metric is None else self.metric.folds
        folds = folds_of(self.target, len(tuned) or self.model.folds, self.groups)
        parts, order = [], []
        for fold in range(folds.max() + 1):
            self.model.show_stage(f"weights: held-out predictions, fold {fold + 1} of {folds.max() + 1}")
            rows, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            parts.append(self._classify_fold(readings, rows, others, tuned[fold] if tuned else None))
            order.append(rows)
        crossed = HeldOut.join(parts).select(np.argsort(np.concatenate(order), kind="stable"))
        crossed = crossed.select(np.flatnonzero(self.model.is_unseen(self.training)))
        if len(crossed.target) == 0:
            return None, {}
        references = {name: each for name, each in crossed.outputs.items() if name in self.network.references}
        members = {name: crossed.outputs[name] for name in self.network.members}
        return crossed._replace(outputs=members), scores_of(references)

    def _classify_fold(
        self,
        readings: Readings,
        rows: NDArray[np.int64],
        others: NDArray[np.int64],
        tuned: TunedFold | None = None,
    ) -> HeldOut:
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
            fold = self._train_encoder(others)
            with self.model.using(fold):
                memory = None if memory is None else memory.encoded_by(self.model.encode)
                if "vectors" in fold.fitted_on(fold.members):
                    seen = self._with_vectors(seen, fold, others)
                held_out = self._with_vectors(held_out, fold, rows)
        fold.search(memory, target)
        names = [*fold.members, *([] if len(self.validation_target) else fold.references)]
        fold.fit(names, seen, self.target[others])
        device = self.model.device if self.network.learns_by_gradients else torch.device("cpu")
        outputs = classify_table(fold, held_out, names, device)
        return HeldOut(outputs, torch.from_numpy(self.target[rows]))

    def _with_vectors(self, readings: Readings, fold: EnsembleNetwork, rows: NDArray[np.int64]) -> Readings:
        read = read_table(self.model, self.training, {"vectors"}, fold, rows)
        return readings._replace(vectors=read.vectors, logits=read.logits)

    def _train_encoder(self, rows: NDArray[np.int64]) -> EnsembleNetwork:
        """A fresh network whose encoder is trained on some rows for as many epochs as the model's best one was."""
        model, options, seed = self.model, self.data.options, self.data.seed
        network = model.fresh_network()
        freeze_parts(network, model.freeze_patterns)
        clip = None if model._trainer is None else model.trainer.gradient_clip_val
        optimizer = model.make_optimizer(parameter_groups(network, model.learning_rates))
        contents = BatchContents(memory_texts=False)
        dataset = self.data.dataset(self.training, contents)
        with torch.random.fork_rng():
            # Every process draws the same dropout.
            torch.manual_seed(seed)
            sampler = LengthBucketSampler(
                dataset.lengths()[rows], options.batch_size, training=True, seed=seed
            )
            for epoch in range(model.best_epochs):
                sampler.set_epoch(epoch)
                for positions in sampler:
                    batch = on_device(dataset.__getitems__(rows[positions]), model)
                    optimizer.zero_grad()
                    loss = functional.cross_entropy(network.encoder_logits(batch), batch.target)
                    loss.backward()  # type: ignore[no-untyped-call]
                    if clip is not None:
                        nn.utils.clip_grad_norm_(network.parameters(), clip)
                    optimizer.step()
                    if not bool(loss.isfinite()):
                        raise InputError(
                            "training diverged while the weights were cross-fitted; use a lower learning rate"
                        )
        return network

    def _measure(
        self, held_out: HeldOut, crossed: HeldOut | None, references: dict[str, Tensor]
    ) -> list[Line]:
        """The table's rows; each validation row is classified with weights that were fitted without its fold."""
        pool, num_classes = self.network.pool, self.network.num_classes
        assert pool is not None
        folds, scores = folds_of(held_out.target.numpy(), _TABLE_FOLDS), None
        for fold in np.unique(folds):
            rows = np.flatnonzero(folds == fold)
            others = held_out.select(np.flatnonzero(folds != fold))
            # A single row, or rows of unknown labels, leave nothing to fit weights on.
            has_others = crossed is not None or len(others.known(num_classes).target) > 0
            fitted = _fit_pool(others, crossed, num_classes) if has_others else pool
            logs = fitted.calibrate(held_out.select(rows).outputs)
            table = fitted.table_rows(logs, {name: each[rows] for name, each in references.items()})
            # Every process has all rows.
            scores = scores or AnswerScores(list(table), sync_on_compute=False)
            scores.update(table, held_out.target[rows], torch.ones(len(rows)))
        assert scores is not None
        return scores.lines(pool.weights["all"])

    def _notes(self, crossed_rows: int) -> list[str]:
        """The conditions of the table."""
        network = self.network
        assert network.pool is not None
        validation = f"{len(self.validation_target):,} validation rows"
        crossed = f"{crossed_rows:,} training rows, each classified by members that were fitted without it"
        rows = " and ".join([validation] * bool(len(self.validation_target)) + [crossed] * bool(crossed_rows))
        notes = [
            f"Weights are fitted on {rows}; each row of the table is classified with weights that were fitted without"
            " its fifth of the rows."
        ]
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


def _fit_pool(held_out: HeldOut, crossed: HeldOut | None, num_classes: int) -> Pool:
    """Fit a pool to validation rows of known labels, and to cross-fitted training rows if there are any."""
    rows = HeldOut.join([held_out.known(num_classes), *([] if crossed is None else [crossed])])
    if len(rows.target) == 0:
        raise InputError(
            "no validation row has a label of the training rows, so no weight can be fitted; name other rows with"
            " --data.validation_file"
        )
    return fit_pool(rows)
