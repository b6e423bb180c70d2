"""The stage of a fit that learns the metric of a frozen encoder, and chooses how far the encoder moves, if at all."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.classification import ClassificationDataModule
from datamodules.corpora.rows import Rows
from datamodules.retrieval.dense.vector_store import Encode, EncodedTexts
from datamodules.text_rows import TextSplit
from zoo.ensemble.base import EnsembleModel
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import COST, Encoder, SelfTrained, guess_sets
from zoo.ensemble.pool import folds_of
from zoo.tasks.classification.guides import UNLABELLED, Guides
from zoo.tasks.classification.metric_learning import (
    MetricPlan,
    learn_metric,
    trained_weights,
    use_weights,
    using,
)
from zoo.tasks.predictor import on_device

log = logging.getLogger("zoo")

#: Weights of an encoder's layers, by name.
Weights: TypeAlias = dict[str, Tensor]

#: Parts of the rows; each is classified by an encoder that was tuned on the others.
FOLDS = 3
#: Steps of a plan, and texts, by which the time of all is estimated.
_TIMED_STEPS, _TIMED_ROWS = 2, 64
#: Of a loss for which the encoder stays as it was.
_STANDARD_ERRORS = 2.0
#: Most steps of a first plan for which all are tried on all folds, those of 160 rows: one fold of more says enough.
_SHORT = 13
#: Part of the loss of held-out rows, and log-likelihood per row, in nats, that a plan has to gain over the plan before.
_GAIN, _LEAST_GAIN = 0.02, 1e-3


class _TunedFold(NamedTuple):
    """An encoder that has not seen some of the training rows."""

    #: the rows that it has not seen.
    rows: NDArray[np.int64]
    weights: Weights
    #: float32 [n, l], of all training rows.
    vectors: NDArray[np.float32]


class EncoderMetric:
    """Tunes a model's frozen encoder on rows of known classes: all of them, or all but a fold.

    Each third of the rows is read by an encoder that was tuned on the others. The fit of an ensemble and the audit of
    its memory make one; cross-fitting reads through it.
    """

    def __init__(
        self,
        model: EnsembleModel,
        data: ClassificationDataModule,
        split: TextSplit,
        target: NDArray[np.int64],
        groups: NDArray[np.integer],
        plans: Sequence[MetricPlan],
        sizes: Sizes,
        before: Weights | None = None,
        guides: Guides | None = None,
    ) -> None:
        """Take n rows, their classes and groups [n], the plans of the tuning, and the weights before any tuning.

        `before` = None: the encoder's present weights. `guides`, which are encoded, are learned from as well.
        """
        self._model, self._data, self._split, self._guides = model, data, split, guides
        self.encoder, self.target, self.sizes = model.network.encoder, target, sizes
        #: float32 [n, l], vectors of the texts before any tuning.
        self.published = np.zeros((0, 0), np.float32)
        #: log-likelihoods of the rows of each fold by these.
        self.before: list[NDArray[np.float32]] = []
        #: the cheapest first.
        self.plans = list(plans)
        self.has_few_rows = plans[0].steps <= _SHORT
        #: the number of steps is the user's: the first plan is kept until all folds are tuned.
        self.is_forced = model.metric_steps is not None
        self.texts = split.rows.texts[:]
        self._encode = partial(model.encode, data)
        #: of all layers that some plan tunes.
        self.original: Weights = self._weights() if before is None else before
        #: the fold of each row, int64 [n].
        self.fold_of_row = folds_of(target, FOLDS, groups)
        self.num_folds = int(self.fold_of_row.max()) + 1
        #: encoders for cross-fitting; empty where there is none.
        self.folds: list[_TunedFold] = []

    def learn(self, published: NDArray[np.float32]) -> MetricPlan | None:
        """Tune the encoder by the best plan, unless held-out rows are clearly less likely by `published` [n, l] then.

        Returns the plan; None if the encoder is as it was.

        Plans are compared on all folds, those of many rows on the first; one that is clearly behind on some ends. The
        encoder then has the mean weights of all folds' encoders, which is as good as one that is tuned on all rows
        (Wortsman et al., "Model soups", ICML 2022). Of sets, it is tuned on all rows: the mean moves less than the
        encoders of the parts, and its labels would be less probable than those of held-out rows.
        """
        self.published = published
        rows = [np.flatnonzero(self.fold_of_row == fold) for fold in range(self.num_folds)]
        self.before = [self._likelihoods(each, published) for each in rows]
        plan = self._best_plan()
        use_weights(self.encoder, self.original)  # also where only another plan has moved it
        if plan is not None:
            self.plans = [plan]
            self.original = self._weights()
            self.tune_folds()
            gains = self._gains(self.folds)
            use_weights(self.encoder, self.original)
            # An encoder of one part is a little worse than their mean: its gain is below 0 where tuning hardly matters.
            if gains.mean() >= -_STANDARD_ERRORS * _standard_error(gains):
                if self.sizes.multilabel:
                    every = np.arange(len(self.target))
                    self._tune_on(plan, every, self._guess(every))
                else:
                    tuned = {name: [fold.weights[name] for fold in self.folds] for name in self.original}
                    means = {name: torch.stack(values).mean(dim=0) for name, values in tuned.items()}
                    use_weights(self.encoder, means)
                return plan
        self.folds = []
        return None

    def _best_plan(self) -> MetricPlan | None:
        """The plan by which held-out rows gain most, with encoders in `folds`; None if none can be expected to gain."""
        best, guides = None, self._guides
        for plan in self.plans:
            if not self._has_time(plan):
                break
            folds, ahead = self._try(plan)
            least = 0.0 if self.has_few_rows else max(-_GAIN * float(self.before[0].mean()), _LEAST_GAIN)
            hope = _STANDARD_ERRORS * _standard_error(ahead) if best is None else 0.0
            if ahead.mean() + hope >= least or (self.is_forced and best is None):
                best, self.folds = plan, folds
            if ahead.mean() < least and not (self.has_few_rows and plan == self.plans[0]):
                break
        if best is None or not self.has_few_rows or guides is None or not self._has_time(best):
            return best
        self._guides = None
        folds, ahead = self._try(best, ", without texts that describe classes")
        self.folds, self._guides = (folds, None) if ahead.mean() > 0 else (self.folds, guides)
        return best

    def _try(self, plan: MetricPlan, described: str = "") -> tuple[list[_TunedFold], NDArray[np.float32]]:
        """Tune without each fold, of many rows the first, until clearly behind; also what rows gain over `folds`."""
        folds: list[_TunedFold] = []
        for fold in range(self.num_folds if self.has_few_rows else 1):
            folds.append(self._tune_without(fold, plan))
            gains = self._gains(folds)
            ahead = gains - self._gains(self.folds[: fold + 1]) if self.folds else gains
            if self.folds and ahead.mean() < -_standard_error(ahead):
                break
        message = "%s%s: a held-out row gains %.2f ± %.2f nats"
        log.info(message, plan, described, gains.mean(), _standard_error(gains))
        return folds, ahead

    def _gains(self, folds: Sequence[_TunedFold]) -> NDArray[np.float32]:
        """Log-likelihoods that the rows of folds, in their order, gain over vectors before any tuning."""
        pairs = zip(folds, self.before, strict=False)
        return np.concatenate([self._likelihoods(fold.rows, fold.vectors) - before for fold, before in pairs])

    def tune_folds(self) -> None:
        """Tune an encoder for each fold, which it does not see; the encoder in use is the last one then."""
        for fold in range(len(self.folds), self.num_folds):
            self.folds.append(self._tune_without(fold, self.plans[0]))

    def _tune_without(self, fold: int, plan: MetricPlan) -> _TunedFold:
        """Tune the encoder, from its weights before, on the rows outside of a fold."""
        use_weights(self.encoder, self.original)
        rows = np.flatnonzero(self.fold_of_row != fold)
        self._tune_on(plan, rows, self._guess(rows))
        return _TunedFold(np.flatnonzero(self.fold_of_row == fold), self._weights(), self._encode(self.texts))

    def _tune_on(self, plan: MetricPlan, rows: NDArray[np.int64], guides: Guides | None = None) -> None:
        """Tune the encoder, in place, on some of the rows; and on guides, each of which has a class, or a set."""
        split, target, model = self._split, self.target, self._model
        if guides is not None:
            texts = [*split.rows.texts.take(rows), *guides.texts]
            split = self._data.split_of(Rows.from_lists(texts, source="texts to tune the encoder"), None)
            rows, target = np.arange(len(texts)), np.concatenate([target[rows], guides.target])
        dataset = self._data.dataset(split, BatchContents(memory_texts=False))

        def read(positions: NDArray[np.int64]) -> ClassificationBatch:
            return on_device(dataset.__getitems__(rows[positions]), model)

        # The stage is none of Lightning's steps, which would have this precision by themselves.
        precision = None if model.data is None else str(model.trainer.precision)
        learn_metric(self.encoder, read, target[rows], plan, self._data.seed, precision)

    def _guess(self, rows: NDArray[np.int64]) -> Guides | None:
        """The guides, with classes for those without by self-training on some rows and the published vectors.

        The tuned encoder would learn from its own guesses: those of the published one are better (AG News and Dblp).
        """
        if self._guides is None:
            return None
        member, vectors = SelfTrained(self.sizes._replace(cost=COST)), torch.from_numpy(self.published[rows])
        member.fit(Readings([], vectors=vectors, guides=self._guides), self.target[rows])
        scores = member(Readings([], vectors=self._guides.vectors)).scores
        is_unknown = self._guides.target == UNLABELLED
        if self.sizes.multilabel:
            sets = self._guides.sets(self.sizes.num_classes)
            sets[is_unknown] = guess_sets(scores[is_unknown], self.target[rows])
            return self._guides._replace(target=sets)
        guessed = np.where(is_unknown, scores.argmax(dim=1).numpy(), self._guides.target)
        return self._guides._replace(target=guessed)

    def _has_time(self, plan: MetricPlan) -> bool:
        """Return whether the model has time for all folds of a plan, by a few of its steps."""
        if self.is_forced or self._model.deadline == math.inf:
            return True
        use_weights(self.encoder, self.original)
        begun = time.monotonic()
        self._tune_on(plan._replace(steps=_TIMED_STEPS), np.arange(len(self.target)))
        seconds = (time.monotonic() - begun) * plan.steps / _TIMED_STEPS
        seconds += seconds_to_encode(self.texts, len(self.texts), self._encode)
        seconds *= FOLDS + self.sizes.multilabel
        return self._model.has_time(f"the encoder's metric by {plan}", seconds)

    def read_without(self, readings: Readings, rows: NDArray[np.int64]) -> Readings:
        """The inputs for the n rows by the encoder that has not seen a fold; see `cross_fit`."""
        tuned = next(fold for fold in self.folds if np.array_equal(fold.rows, rows))
        memory, guides = readings.memory, readings.guides

        def encode(texts: list[str]) -> NDArray[np.float32]:
            with using(self.encoder, tuned.weights):  # those of training rows are looked up
                return EncodedTexts.of(self.texts, tuned.vectors).vectors_of(texts, self._encode)

        if memory is not None:
            memory = memory._replace(encoded=memory.encoded.encoded_by(encode))
        guides = None if guides is None else guides.encoded_by(encode)
        return readings._replace(vectors=torch.from_numpy(tuned.vectors), memory=memory, guides=guides)

    def _weights(self) -> Weights:
        """The encoder's present weights, of all layers that some plan tunes."""
        depths = dict.fromkeys(plan.layers for plan in self.plans)
        layers = (trained_weights(self.encoder, depth) for depth in depths)
        return {name: value.detach().clone() for layer in layers for name, value in layer}

    # --- the choice ---

    def _likelihoods(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-likelihoods of a fold's rows by a calibrated `encoder`, fitted to the others of n vectors [n, l]."""
        others = np.setdiff1d(np.arange(len(self.target)), rows)
        member, classes = Encoder(self.sizes), torch.from_numpy(self.target[rows])
        member.fit(Readings([], vectors=torch.from_numpy(vectors[others])), self.target[others])
        scores = member(Readings([], vectors=torch.from_numpy(vectors[rows])))
        logs: Tensor = scores.log_probabilities(scores.best_calibration(classes))
        return -functional.nll_loss(logs, classes, reduction="none").reshape(len(rows), -1).sum(dim=1).numpy()


def _standard_error(values: NDArray[np.float32]) -> float:
    return float(values.std() / np.sqrt(len(values)))


def seconds_to_encode(texts: list[str], number: int, encode: Encode) -> float:
    """Estimate the seconds for the vectors of so many texts by encoding a few of them."""
    encode(texts[:_TIMED_ROWS])  # the first call takes longer
    some, begun = texts[_TIMED_ROWS : 2 * _TIMED_ROWS] or texts, time.monotonic()
    encode(some)
    return (time.monotonic() - begun) * number / len(some)
