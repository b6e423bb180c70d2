"""The stage of a fit that learns the metric of a frozen encoder, and chooses between it and the encoder as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.core.arrays import RowLookup
from datamodules.retrieval.dense.text_vectors import look_up_vectors
from datamodules.retrieval.folding import text_hashes
from datamodules.text_rows import TextRowsDataModule
from zoo.ensemble.member import Readings
from zoo.ensemble.members import Encoder
from zoo.ensemble.pool import folds_of
from zoo.layers.encoders import TransformerEncoder
from zoo.tasks.classification.metric_learning import MetricPlan, trained_weights

if TYPE_CHECKING:
    from zoo.ensemble.model import MemoryEnsemble

#: Weights of an encoder's layers, by name.
Weights: TypeAlias = dict[str, Tensor]

#: Parts of the training rows; each is classified by an encoder that was tuned on the others.
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


class EncoderMetric:
    """Tunes the frozen encoder of an ensemble on its training rows."""

    def __init__(
        self,
        model: MemoryEnsemble,
        data: TextRowsDataModule[Any],
        target: NDArray[np.int64],
        groups: NDArray[np.integer],
        plan: MetricPlan,
    ) -> None:
        """Keep the weights of the encoder as it is; the training rows have these classes and groups [n]."""
        self.groups = groups
        self.model, self.data, self.plan = model, data, plan
        self.training, self.target = data.split("train"), target
        self.texts = self.training.rows.texts[:]
        encoder = model.network.encoder
        assert isinstance(encoder, TransformerEncoder)
        self.encoder = encoder
        self.original = self._weights()
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
            before = self.model.encode(self.texts)
            self.folds = [self._tune_fold(rows) for rows in self._parts()]
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
        """Weights of the encoder, tuned on some of the training rows."""
        self.use(self.original)
        self.model.tune_encoder(self.data, self.target, self.plan, rows)
        return self._weights()

    def use(self, weights: Weights) -> None:
        """Give the encoder these weights."""
        own = dict(self.encoder.named_parameters())
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)
        self.model.forget_digests()

    @contextmanager
    def using(self, weights: Weights) -> Iterator[None]:
        """Give the encoder other weights for a while."""
        before = self._weights()
        self.use(weights)
        try:
            yield
        finally:
            self.use(before)

    def encode_by(self, fold: TunedFold, texts: list[str]) -> NDArray[np.float32]:
        """The vectors of texts [m, l] by the encoder of a fold; those of training rows are looked up."""
        rows = RowLookup.of(text_hashes(self.texts)).first_rows(text_hashes(texts)).astype(np.int64)
        with self.using(fold.weights):
            return look_up_vectors(texts, fold.vectors, rows, self.model.encode)

    def _weights(self) -> Weights:
        return {
            name: value.detach().clone() for name, value in trained_weights(self.encoder, self.plan.layers)
        }

    # --- the choice ---

    def _parts(self) -> list[NDArray[np.int64]]:
        folds = folds_of(self.target, FOLDS, self.groups)
        return [np.flatnonzero(folds == fold) for fold in np.unique(folds)]

    def _tune_fold(self, rows: NDArray[np.int64]) -> TunedFold:
        others = np.setdiff1d(np.arange(len(self.target)), rows)
        weights = self.tune(others)
        self.use(weights)
        return TunedFold(rows, weights, self.model.encode(self.texts))

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
            vectors, others = self.model.encode(seen), self.model.encode(unseen)
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
        member, classes = Encoder(self.model.network.sizes), torch.from_numpy(held_out_target)
        member.fit(Readings([], vectors=torch.from_numpy(vectors)), target)
        scores = member(Readings([], vectors=torch.from_numpy(held_out)))
        logs: Tensor = scores.log_probabilities(scores.best_calibration(classes))
        return logs.gather(1, classes[:, None])[:, 0].numpy()
