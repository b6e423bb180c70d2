"""Logistic regressions on the vectors of an encoder: the reference of the table, and a member for few labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from typing_extensions import override

from zoo.ensemble.guides import UNLABELLED
from zoo.ensemble.member import Input, Member, Readings, Sizes
from zoo.ensemble.outputs import Scores
from zoo.layers.tfidf import planes_of

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

#: Weights of errors that the reference chooses from by three folds, and the number of rows to choose on.
_COSTS = (0.3, 1.0, 3.0, 10.0, 30.0)
_COST_ROWS = 3000

#: Weight of errors of the member.
_COST = 10.0
#: Labelled rows that the member learns from: with more of them, it brings nothing.
_ROWS = 3000
#: Times that texts without labels are classified and learned from.
_ROUNDS = 3
#: Times that the probabilities of classes are scaled to their shares.
_SCALINGS = 20


class Regression(Member):
    """A reference: multinomial logistic regression on the vectors of a frozen encoder."""

    name = "regression"
    title = "logistic regression on the transformer"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors"})

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear = nn.Linear(sizes.vector_size, sizes.num_classes).requires_grad_(False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        from sklearn.linear_model import LogisticRegression

        assert readings.vectors is not None
        vectors, present = readings.vectors.numpy(), np.unique(target)
        if len(present) > 1:
            cost = _best_cost(vectors, target)
            self.use_planes(LogisticRegression(C=cost, max_iter=500).fit(vectors, target))
        else:
            self.linear.weight.zero_()
            self.linear.bias.fill_(-10.0)[present] = 10.0

    def use_planes(self, model: LogisticRegression) -> None:
        """Take the planes of a regression; a class that it has not seen never wins."""
        self.linear.weight.zero_()
        self.linear.bias.fill_(-10.0)
        weight, bias = (torch.from_numpy(part).float() for part in planes_of(model))
        self.linear.weight[model.classes_], self.linear.bias[model.classes_] = weight, bias

    @override
    def forward(self, readings: Readings) -> Scores:
        assert readings.vectors is not None
        vectors = functional.normalize(readings.vectors.float(), dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            return Scores(self.linear(vectors))


class SelfTrained(Regression):
    """Logistic regression on the vectors of labelled rows, of the classes' own words, and of texts without labels.

    Texts without labels are classified, then learned from with the most probable class, three times (self-training:
    Scudder, "Probability of error of some adaptive pattern-recognition machines", 1965; Lee, "Pseudo-Label", ICML
    workshop 2013). Their probabilities are scaled until the classes have the shares that labelled rows have
    (distribution alignment: Berthelot et al., "ReMixMatch", ICLR 2020, Section 3.1). All of them weigh as much as the
    labelled rows together. Its scores are 0 where there is neither a word nor such a text.
    """

    name = "self_trained"
    title = "regression with class names and unlabelled texts"
    reads: ClassVar[frozenset[Input]] = frozenset({"vectors"})
    learns_from: ClassVar[frozenset[Input]] = frozenset({"guides"})

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        guides = readings.guides
        if guides is None or guides.vectors is None or not guides.texts:
            return
        assert readings.vectors is not None
        rows = np.random.default_rng(0).permutation(len(target))[:_ROWS]
        directions = functional.normalize(guides.vectors.float(), dim=1).numpy()
        is_known = guides.target != UNLABELLED
        vectors = np.concatenate(
            [functional.normalize(readings.vectors[rows].float(), dim=1).numpy(), directions[is_known]]
        )
        classes = np.concatenate([target[rows], guides.target[is_known]])
        if len(np.unique(classes)) < 2:
            return
        counts = np.bincount(target, minlength=self.sizes.num_classes) + 1.0
        weight = np.ones(len(classes))
        model = _regression(vectors, classes, weight)
        others = directions[~is_known]
        for _ in range(_ROUNDS if len(others) else 0):
            guessed = _guess(model, others, counts[model.classes_] / counts[model.classes_].sum())
            share = np.full(len(others), len(classes) / len(others))
            model = _regression(
                np.concatenate([vectors, others]),
                np.concatenate([classes, guessed]),
                np.concatenate([weight, share]),
            )
        self.use_planes(model)


def _regression(
    vectors: NDArray[np.float32], target: NDArray[np.int64], weight: NDArray[np.float64]
) -> LogisticRegression:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=_COST, max_iter=300).fit(vectors, target, sample_weight=weight)


def _guess(
    model: LogisticRegression, vectors: NDArray[np.float32], shares: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Classes [m] of texts by a regression whose classes have these shares [C] in the mean."""
    probabilities = model.predict_proba(vectors)
    for _ in range(_SCALINGS):
        probabilities *= shares / np.maximum(probabilities.mean(axis=0), 1e-9)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
    guessed: NDArray[np.int64] = model.classes_[probabilities.argmax(axis=1)]
    return guessed


def _best_cost(vectors: NDArray[np.float32], target: NDArray[np.int64]) -> float:
    """The weight of errors with the highest likelihood on held-out folds; 1 where rows are too few for folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    present, counts = np.unique(target, return_counts=True)
    few = np.random.default_rng(0).permutation(len(target))[:_COST_ROWS]
    rows = few[np.isin(target[few], present[counts >= 6])]
    sizes = np.unique(target[rows], return_counts=True)[1]
    if len(sizes) < 2 or sizes.min() < 3:
        return 1.0
    model, folds = LogisticRegression(max_iter=200), StratifiedKFold(3)
    search = GridSearchCV(model, {"C": _COSTS}, scoring="neg_log_loss", cv=folds, refit=False)
    return float(search.fit(vectors[rows], target[rows]).best_params_["C"])
