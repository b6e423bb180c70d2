"""The stage of a fit that learns the metric of a frozen encoder, and chooses between it and the encoder as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.core.arrays import RowLookup
from datamodules.retrieval.dense.text_vectors import look_up_vectors
from datamodules.retrieval.folding import text_hashes
from zoo.ensemble.cross_fitting import ReadRows
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import Encoder
from zoo.ensemble.pool import folds_of
from zoo.layers.encoders import TransformerEncoder
from zoo.tasks.classification.metric_learning import trained_weights

#: Weights of an encoder's layers, by name.
Weights: TypeAlias = dict[str, Tensor]

#: Parts of the rows; each is classified by an encoder that was tuned on the others.
FOLDS = 3
#: Of a loss for which the encoder stays as it was.
_STANDARD_ERRORS = 2.0
#: Training and held-out rows on which the two metrics are compared, at most.
_COMPARED_ROWS = 1000


class TunedFold(NamedTuple):
    """An encoder that has not seen some of the training rows.

    Attributes:
        rows: the rows that it has not seen.
        weights: its own.
        vectors: float32 [n, l], of all training rows.
    """

    rows: NDArray[np.int64]
    weights: Weights
    vectors: NDArray[np.float32]


@dataclass
class EncoderMetric:
    """Tunes a frozen encoder on rows of known classes: all of them, or all but a fold."""

    encoder: TransformerEncoder
    #: tunes the encoder, in place, on rows with these numbers.
    tune_on: Callable[[NDArray[np.int64]], None]
    #: the vectors of texts by the encoder as it is, [m, l].
    encode: Callable[[list[str]], NDArray[np.float32]]
    #: number of its upper layers that are tuned; None = half of them.
    layers: int | None
    #: sizes of the member that reads its vectors.
    sizes: Sizes
    #: of n rows.
    texts: list[str]
    #: int64 [n], classes.
    target: NDArray[np.int64]
    #: [n], equal for duplicates.
    groups: NDArray[np.integer]
    #: the weights before any tuning; None = the present ones.
    before: Weights | None = None

    def __post_init__(self) -> None:
        self.original: Weights = self._weights() if self.before is None else self.before
        #: encoders for cross-fitting; empty where there is none.
        self.folds: list[TunedFold] = []

    def learn(self, validation: tuple[Sequence[str], NDArray[np.int64]] | None) -> bool:
        """Tune the encoder on the training rows, unless held-out rows are clearly less likely then.

        Args:
            validation: texts and classes of held-out rows. None = each third of the training rows is held out in turn:
                the encoder then has the mean weights of all three, which is as good as one that is tuned on all rows
                (Wortsman et al., "Model soups", ICML 2022).

        Returns:
            True if the encoder was tuned; otherwise it is as it was.
        """
        if validation is None:
            before = self.encode(self.texts)
            self.tune_folds()
            gains = np.concatenate([self._gains_of_fold(fold, before) for fold in self.folds])
            weights = [fold.weights for fold in self.folds]
            self.use({name: torch.stack([each[name] for each in weights]).mean(dim=0) for name in weights[0]})
        else:
            self.use(self.tune(np.arange(len(self.target))))
            gains = self._gains(*validation)
        # An encoder of one part is a little worse than their mean, so that its gain is slightly negative where tuning
        # hardly matters.
        is_worse = bool(gains.sum() < -_STANDARD_ERRORS * gains.std() * np.sqrt(len(gains)))
        if is_worse:
            self.folds = []
            self.use(self.original)
        return not is_worse

    def tune(self, rows: NDArray[np.int64]) -> Weights:
        """Weights of the encoder, tuned on some of the rows."""
        self.use(self.original)
        self.tune_on(rows)
        return self._weights()

    def tune_folds(self) -> None:
        """Tune an encoder for each fold, which it does not see; the encoder in use is the last one then."""
        folds = self.fold_of_row()
        for fold in np.unique(folds):
            rows = np.flatnonzero(folds == fold)
            weights = self.tune(np.flatnonzero(folds != fold))
            self.folds.append(TunedFold(rows, weights, self.encode(self.texts)))

    def fold_of_row(self) -> NDArray[np.int64]:
        """The fold of each row, int64 [n]."""
        return folds_of(self.target, FOLDS, self.groups)

    def use(self, weights: Weights) -> None:
        """Give the encoder these weights."""
        own = dict(self.encoder.named_parameters())
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    @contextmanager
    def using(self, weights: Weights) -> Iterator[None]:
        """Give the encoder other weights for a while."""
        with self.restored():
            self.use(weights)
            yield

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Give the encoder its present weights again afterwards."""
        before = self._weights()
        try:
            yield
        finally:
            self.use(before)

    def encode_by(self, fold: TunedFold, texts: list[str]) -> NDArray[np.float32]:
        """The vectors of texts [m, l] by the encoder of a fold; those of training rows are looked up."""
        rows = RowLookup.of(text_hashes(self.texts)).first_rows(text_hashes(texts)).astype(np.int64)
        with self.using(fold.weights):
            return look_up_vectors(texts, fold.vectors, rows, self.encode)

    def _weights(self) -> Weights:
        return {name: value.detach().clone() for name, value in trained_weights(self.encoder, self.layers)}

    # --- the choice ---

    def _gains_of_fold(self, fold: TunedFold, before: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-likelihoods that the held-out rows of a fold gain over the vectors [n, l] before."""
        rows, others = fold.rows, np.setdiff1d(np.arange(len(self.target)), fold.rows)
        after, as_it_was = (
            self._likelihoods(vectors[others], self.target[others], vectors[rows], self.target[rows])
            for vectors in (fold.vectors, before)
        )
        return after - as_it_was

    def _gains(self, texts: Sequence[str], target: NDArray[np.int64]) -> NDArray[np.float32]:
        """Log-likelihoods that held-out rows gain by the encoder in use."""
        few = np.random.default_rng(0).permutation(len(self.target))[:_COMPARED_ROWS]
        held_out = np.random.default_rng(0).permutation(len(target))[:_COMPARED_ROWS]
        seen, unseen = [self.texts[row] for row in few], [texts[row] for row in held_out]

        def likelihoods() -> NDArray[np.float32]:
            vectors, others = self.encode(seen), self.encode(unseen)
            return self._likelihoods(vectors, self.target[few], others, target[held_out])

        after = likelihoods()
        with self.using(self.original):
            return after - likelihoods()

    def _likelihoods(
        self,
        vectors: NDArray[np.float32],
        target: NDArray[np.int64],
        held_out: NDArray[np.float32],
        held_out_target: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Log-likelihoods of held-out rows by the calibrated encoder's member, fitted to the vectors of others."""
        member, classes = Encoder(self.sizes), torch.from_numpy(held_out_target)
        member.fit(Readings([], vectors=torch.from_numpy(vectors)), target)
        scores = member(Readings([], vectors=torch.from_numpy(held_out)))
        logs: Tensor = scores.log_probabilities(scores.best_calibration(classes))
        return logs.gather(1, classes[:, None])[:, 0].numpy()


@dataclass(frozen=True)
class TunedReader:
    """A `Reader` of the rows on which a metric was learned: each fold by the encoder that has not seen it."""

    rows: ReadRows
    metric: EncoderMetric

    def without(self, rows: NDArray[np.int64]) -> ReadRows:
        """A reader by the encoder of a fold."""
        tuned = next(fold for fold in self.metric.folds if np.array_equal(fold.rows, rows))
        readings = self.rows.readings._replace(vectors=torch.from_numpy(tuned.vectors))
        memory, target = self.rows.memory
        if memory is not None:
            memory = memory.encoded_by(partial(self.metric.encode_by, tuned))
        return ReadRows(readings, (memory, target))
