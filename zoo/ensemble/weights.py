"""A few weights for independent witnesses: the log-linear (logarithmic) opinion pool.

    log p(class | text) = sum over the witnesses of w log p_w(class | text) + constant,  w >= 0

(Genest and Zidek, "Combining Probability Distributions", 1986; Hinton's product of experts). Each witness is first
made honest by itself: a temperature for scores, sharpness and smoothing for a vote. Everything here is fitted on
predictions for rows that the witness has not learned from; on those that it has, it would be far too sure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from zoo.layers.vote import count_votes, vote

#: Temperature and nothing, or sharpness and smoothing.
Shape: TypeAlias = tuple[float, float]

TEMPERATURES = [0.1 * 1.25**step for step in range(26)]
SHARPNESSES = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0]
SMOOTHINGS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
#: A witness stays if the held-out log-likelihood loses more than this without it: a parameter's price by Akaike.
PRICE = 1.0


class Opinions(ABC):
    """What one witness says of n texts, before it is made honest."""

    #: shapes to choose from.
    shapes: ClassVar[Sequence[Shape]]

    @abstractmethod
    def log_probabilities(self, shape: Shape) -> Tensor:
        """float32 [n, C]."""

    @abstractmethod
    def select(self, rows: NDArray[np.int64]) -> Opinions:
        """Those of some rows."""


class Scores(Opinions):
    """Of a classifier: a score for each class."""

    shapes: ClassVar = [(temperature, 0.0) for temperature in TEMPERATURES]

    def __init__(self, scores: Tensor) -> None:
        """Take scores float32 [n, C]."""
        self.scores = scores

    def log_probabilities(self, shape: Shape) -> Tensor:
        """log softmax(t s)."""
        return (self.scores.float() * shape[0]).log_softmax(dim=1)

    def select(self, rows: NDArray[np.int64]) -> Scores:
        """Those of some rows."""
        return Scores(self.scores[rows])


class Ballots(Opinions):
    """Of labelled memories: each votes for its own class."""

    shapes: ClassVar = [(sharpness, smoothing) for sharpness in SHARPNESSES for smoothing in SMOOTHINGS]

    def __init__(self, score: Tensor, mask: Tensor, target: Tensor, num_classes: int) -> None:
        """Take the memories that were found.

        Args:
            score: float32 [n, K] retrieval scores.
            mask: bool [n, K], True where there is a memory.
            target: int64 [n, K], their classes, negative where there is none.
            num_classes: C.
        """
        self.score = score.masked_fill(~mask, 0.0)
        self.mask = mask
        self.classes = target.masked_fill(~mask, -1)
        self.num_classes = num_classes

    @property
    def target(self) -> Tensor:
        """int64 [n, K], the memories' classes among the C; -1 for all others."""
        return self.classes.masked_fill(self.classes >= self.num_classes, -1)

    def over(self, num_classes: int) -> Ballots:
        """The same vote for more classes, which only the memory knows."""
        return Ballots(self.score, self.mask, self.classes, num_classes)

    def shares(self, sharpness: float) -> Tensor:
        """float32 [n, K]: what each memory counts for, (score / best score) ** sharpness, adding up to 1."""
        return vote(torch.zeros_like(self.score), self.score, self.mask, 0.0, sharpness)

    def log_probabilities(self, shape: Shape) -> Tensor:
        """Log of the votes, smoothed by so many votes for all classes together; without memories all are equal."""
        sharpness, smoothing = shape
        votes = count_votes(self.shares(sharpness), self.target, self.num_classes)
        return ((votes + smoothing / self.num_classes) / (votes.sum(dim=1, keepdim=True) + smoothing)).log()

    def select(self, rows: NDArray[np.int64]) -> Ballots:
        """Those of some rows."""
        return Ballots(self.score[rows], self.mask[rows], self.classes[rows], self.num_classes)


class Trust(NamedTuple):
    """What was fitted: how each witness is read, and what it counts for beside which others."""

    #: witness -> shape.
    shapes: dict[str, Shape]
    #: combination (`all`, `text`, `memory`) -> witness -> weight; 0 = it does not help.
    weights: dict[str, dict[str, float]]

    def describe(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"shapes": {name: list(shape) for name, shape in self.shapes.items()}, "weights": self.weights}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Trust:
        """What `describe` described."""
        shapes = {name: (shape[0], shape[1]) for name, shape in described["shapes"].items()}
        return cls(shapes, {name: dict(weights) for name, weights in described["weights"].items()})

    def combine(self, said: Mapping[str, Tensor], combination: str = "all") -> Tensor:
        """[n, C]: the weighed sum of the witnesses' log probabilities, each [n, C]."""
        weights = self.weights[combination]
        return torch.stack([weights[name] * said[name] for name in weights]).sum(dim=0)


def fit_trust(opinions: Mapping[str, Opinions], target: Tensor) -> Trust:
    """Fit shapes and weights on n held-out rows.

    Args:
        opinions: witness -> what it says of the rows.
        target: int64 [n], their classes.
    """
    shapes = {name: best_shape(said, target) for name, said in opinions.items()}
    said = {name: opinions[name].log_probabilities(shape) for name, shape in shapes.items()}
    votes = [name for name, one in opinions.items() if isinstance(one, Ballots)]
    combinations = {"all": list(said), "text": [name for name in said if name not in votes], "memory": votes}
    return Trust(
        shapes,
        {
            combination: fit_weights({name: said[name] for name in names}, target)
            for combination, names in combinations.items()
            if names
        },
    )


def best_shape(opinions: Opinions, target: Tensor) -> Shape:
    """The shape with which a witness by itself gives the classes the highest likelihood."""

    def loss(shape: Shape) -> float:
        return float(functional.nll_loss(opinions.log_probabilities(shape), target))

    return min(opinions.shapes, key=loss)


def fit_weights(said: Mapping[str, Tensor], target: Tensor) -> dict[str, float]:
    """Weights >= 0 of the highest likelihood; a witness that is not worth its price is dropped, the least useful first.

    Args:
        said: witness -> log probabilities [n, C].
        target: int64 [n].
    """
    stacked = {name: values.double() for name, values in said.items()}
    kept = list(stacked)
    weights, loss = _most_likely([stacked[name] for name in kept], target)
    while len(kept) > 1:
        others = {name: [one for one in kept if one != name] for name in kept}
        without = {
            name: _most_likely([stacked[one] for one in rest], target) for name, rest in others.items()
        }
        # Equals are dropped from the end: what stands first is kept.
        least = min(reversed(kept), key=lambda name: without[name][1])
        if (without[least][1] - loss) * len(target) > PRICE:
            break
        kept, (weights, loss) = others[least], without[least]
    return {name: weights[kept.index(name)] if name in kept else 0.0 for name in said}


def _most_likely(said: Sequence[Tensor], target: Tensor) -> tuple[list[float], float]:
    """The weights [witnesses] that minimise the mean negative log-likelihood, and that minimum: a convex problem."""
    from scipy.optimize import minimize

    stacked = torch.stack(list(said))  # [witnesses, n, C]

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = torch.tensor(values, requires_grad=True)
        found = functional.cross_entropy(torch.einsum("w,wnc->nc", weights, stacked), target)
        found.backward()  # type: ignore[no-untyped-call]
        assert weights.grad is not None
        return found.item(), weights.grad.numpy()

    # An upper bound: where held-out rows are few and all are right, no weight is too large.
    bounds = [(0.0, 5.0)] * len(said)
    solved = minimize(loss, np.full(len(said), 1 / len(said)), jac=True, bounds=bounds, method="L-BFGS-B")
    return [float(weight) for weight in solved.x], float(solved.fun)


def folds_of(target: NDArray[np.int64], folds: int, seed: int = 0) -> NDArray[np.int64]:
    """The fold 0..folds-1 of each row [n]: drawn by the seed, each class spread evenly over the folds."""
    order = np.random.default_rng(seed).permutation(len(target))
    by_class = order[np.argsort(target[order], kind="stable")]
    found = np.empty(len(target), np.int64)
    found[by_class] = np.arange(len(target)) % folds
    return found
