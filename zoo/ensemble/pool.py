"""A few weights for independent members: the log-linear (logarithmic) opinion pool.

    log p(class | text) = sum over the members of w log p_m(class | text) + constant,  w >= 0

(Genest and Zidek, "Combining Probability Distributions", 1986; Hinton's product of experts). Calibrations and weights
are fitted on outputs for rows that the members have not learned from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from datamodules.core.types import PlainDict
from zoo.ensemble.members import REFERENCES, is_reference
from zoo.ensemble.outputs import CalibrationValues, Outputs, Scores, Votes
from zoo.tasks.classification.multilabel import SetRule, choose_labels, fit_rule, probabilities_of

#: A member that stays adds at least this to the held-out log-likelihood: Akaike's price of a parameter.
PRICE = 1.0
#: The first of these members that tells texts apart is trusted before any row is seen.
_TRUSTED = ("self_trained", "encoder", "bag", "named", "lexical")
#: Inverse variance of weights around 1 for the trusted member, and 0 for others; 10 and 80 are as good at 8 and 30 rows
#: a class (nine tables of topics, intents and kinds of questions).
_PRECISION = 30.0
#: Sharpness and smoothing of a vote that was not measured.
_USUAL_VOTE = (8.0, 0.1)
#: Of a difference that counts as significant.
_STANDARD_ERRORS = 1.96
#: Standard deviation of a sign that says something.
_LEAST_SCALE = 1e-6
#: Answers to the question whether a text has a label, to which weights are fitted: more bring nothing, and take hours.
_MOST_LABELS = 1_000_000
#: Memories whose mean score is the nearness of a text to a memory.
_NEAREST = 3
#: The probability of the best class, beside the nearness to the memory in each vote.
PROBABILITY = "probability"

#: Combination of members -> its name in the answer's table.
COMBINATIONS = {"text": "without memory", "memory": "memory alone", "all": "all"}


class HeldOut(NamedTuple):
    """Outputs for n rows with known classes that the members have not learned from."""

    #: member or reference -> its outputs.
    outputs: dict[str, Outputs]
    #: int64 [n], classes, or sets of labels [n, C].
    target: Tensor
    #: [n], equal for duplicates.
    groups: NDArray[np.integer]
    #: int64 [n], number of a row's labels that the members do not know; None = they know all.
    unknown: Tensor | None = None

    def select(self, rows: NDArray[np.int64]) -> HeldOut:
        """Some of the rows."""
        outputs = {name: each.select(rows) for name, each in self.outputs.items()}
        unknown = None if self.unknown is None else self.unknown[rows]
        return HeldOut(outputs, self.target[rows], self.groups[rows], unknown)

    def distinct(self) -> HeldOut:
        """The first row of each group."""
        return self.select(np.sort(np.unique(self.groups, return_index=True)[1]))

    def few(self) -> HeldOut:
        """Rows drawn at random, as many as have `_MOST_LABELS` answers; all if these are fewer."""
        number = _MOST_LABELS // max(1, self.target[:1].numel())
        drawn = np.random.default_rng(0).permutation(len(self.target))[:number]
        return self if number >= len(self.target) else self.select(np.sort(drawn))

    def known(self) -> HeldOut:
        """The rows of whose labels the members know all."""
        return self if self.unknown is None else self.select(np.flatnonzero(self.unknown.numpy() == 0))

    @classmethod
    def join(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """Several as one, with the outputs that all have."""
        first, *others = parts
        shared = [name for name in first.outputs if all(name in part.outputs for part in others)]
        outputs = {
            name: first.outputs[name].joined([part.outputs[name] for part in others]) for name in shared
        }
        target = torch.cat([part.target.cpu() for part in parts])
        return cls(outputs, target, np.concatenate([part.groups for part in parts]))


class Pool(NamedTuple):
    """Fitted calibrations and weights."""

    #: member -> calibration.
    calibrations: dict[str, CalibrationValues]
    #: combination (`all`, `text`, `memory`) -> member -> weight; 0 = the member does not help.
    weights: dict[str, dict[str, float]]
    #: [C], logs of the weights of errors on rows of each class; empty = all are equal.
    class_weights: Sequence[float] = ()
    #: `PROBABILITY` or vote -> weight in the familiarity of a text; see `fit_familiarity`.
    familiar: Mapping[str, float] = MappingProxyType({PROBABILITY: 1.0})
    #: row of the answer's table -> its choice of a set; empty where texts have one label.
    rules: Mapping[str, SetRule] = MappingProxyType({})

    def describe(self) -> PlainDict:
        """Plain values for a checkpoint."""
        return self._asdict() | {"familiar": dict(self.familiar), "rules": dict(self.rules)}

    @classmethod
    def of(cls, described: PlainDict) -> Pool:
        """The pool that `describe` described."""
        calibrations = {name: tuple(values) for name, values in described["calibrations"].items()}
        weights = {name: dict(weights) for name, weights in described["weights"].items()}
        rules = {name: tuple(rule) for name, rule in described["rules"].items()}
        return cls(calibrations, weights, tuple(described["class_weights"]), described["familiar"], rules)

    @classmethod
    def alone(cls, name: str, votes: Sequence[str]) -> Pool:
        """A member with the weight 1, and votes that decide on classes of the memory alone; nothing is measured."""
        memory = {"memory": dict.fromkeys(votes, 1 / len(votes))} if votes else {}
        weights = {"all": dict.fromkeys(votes, 0.0) | {name: 1.0}, "text": {name: 1.0}, **memory}
        return cls(dict.fromkeys(votes, _USUAL_VOTE) | {name: (1.0, 0.0, False)}, weights)

    def calibrate(self, outputs: Mapping[str, Outputs]) -> dict[str, Tensor]:
        """Log probabilities [n, C] of each member; of sets, [n, 2, C]."""
        known = {name: each for name, each in outputs.items() if name in self.calibrations}
        return {name: each.log_probabilities(self.calibrations[name]) for name, each in known.items()}

    def combine(self, log_probabilities: Mapping[str, Tensor], combination: str = "all") -> Tensor:
        """The weighted sum of the members' log probabilities, and the class weights [n, C].

        Probabilities times the classes' weights minimize the weighted error (Elkan, "The Foundations of Cost-Sensitive
        Learning", IJCAI 2001, Equation 1): members and calibrations need not be fitted by them.
        """
        weights = self.weights[combination]
        pooled = torch.stack([weights[name] * log_probabilities[name] for name in weights])
        return self._weighted(pooled.sum(dim=0))

    def familiarity(self, outputs: Mapping[str, Outputs], logits: Tensor) -> Tensor:
        """The likeness of texts to those of some class [n], by the pooled logits [n, C + N]; unbounded."""
        signs = _signs_of_class(outputs, logits)
        return torch.stack([weight * signs[name] for name, weight in self.familiar.items()]).sum(dim=0)

    def answer(self, row: str, logits: Tensor) -> Tensor:
        """Classes [n] of a row of the answer's table by logits [n, C]; or sets [n, C] by logits [n, 2, C]."""
        if logits.ndim == 2:
            return logits.argmax(dim=1)
        return choose_labels(probabilities_of(logits), self.rules[row])

    def answers(self, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Row of the answer's table -> its answers, by the logits of the rows; see `answer` and `table_logits`."""
        return {name: self.answer(name, of_row) for name, of_row in logits.items()}

    def table_logits(self, outputs: Mapping[str, Outputs]) -> dict[str, Tensor]:
        """Row of the answer's table -> [n, C], or of sets [n, 2, C]: references, members alone, and combinations."""
        logs = self.calibrate(outputs)
        references = {
            name: logs.pop(name, each.scores)
            for name, each in outputs.items()
            if name in REFERENCES and name not in self.weights["all"] and isinstance(each, Scores)
        }
        titles = {name: title for name, title in COMBINATIONS.items() if name in self.weights}
        combined = {title: self.combine(logs, name) for name, title in titles.items()}
        weighted = {name: self._weighted(log) for name, log in logs.items()}
        return {**references, **weighted, **combined}

    def _weighted(self, log_probabilities: Tensor) -> Tensor:
        return log_probabilities + log_probabilities.new_tensor(self.class_weights or [0.0])


def fit_pool(held_out: HeldOut, class_weights: Sequence[float] = ()) -> Pool:
    """Fit calibrations and weights on held-out rows; duplicates are one row, since they are one observation."""
    outputs, target, *_ = held_out.distinct().few()
    multilabel = target.ndim == 2
    references = {name: each for name, each in outputs.items() if is_reference(name, multilabel)}
    outputs = {name: each for name, each in outputs.items() if name not in references}
    calibrations = {name: each.best_calibration(target) for name, each in outputs.items()}
    logs = {name: outputs[name].log_probabilities(calibration) for name, calibration in calibrations.items()}
    votes = [name for name, each in outputs.items() if isinstance(each, Votes)]
    scores = {name: each.scores for name, each in outputs.items() if isinstance(each, Scores)}
    # Members that answer where held-out rows speak for none.
    trusted_first = [name for name in _TRUSTED if name in scores and (scores[name] != scores[name][:1]).any()]
    combinations = {"all": list(logs), "text": [name for name in logs if name not in votes], "memory": votes}
    weights = PlainDict()
    for combination, names in combinations.items():
        if names:
            trusted = next((name for name in trusted_first if name in names), names[0])
            prior = None if combination == "memory" else trusted
            weights[combination] = fit_weights({name: logs[name] for name in names}, target, prior)
            # A dozen rows speak for no member: the rows of a class are always outnumbered where one is held out.
            if not any(weights[combination].values()):
                weights[combination][trusted] = 1.0
    if "text" in weights and not multilabel and _loses(weights["all"], weights["text"], logs, target):
        weights["all"] = dict.fromkeys(logs, 0.0) | weights["text"]
    if multilabel:  # the references' sets are chosen as well as the members'
        calibrations |= {name: each.best_calibration(target) for name, each in references.items()}
    pool = Pool(calibrations, weights, class_weights)
    pool = pool._replace(familiar=fit_familiarity(outputs, pool.combine(logs), target))
    rows = pool.table_logits(outputs | references) if multilabel else {}
    rules = {name: fit_rule(probabilities_of(logits), target) for name, logits in rows.items()}
    return pool._replace(rules=rules)


def fit_familiarity(outputs: Mapping[str, Outputs], logits: Tensor, target: Tensor) -> dict[str, float]:
    """Weights >= 0 of the signs that a text is of some known class, fitted on n held-out rows without their classes.

    Logistic regression ranks rows above others as these would look if their class did not exist: without the class's
    logit among the pooled ones [n, C], and without its memories. A class that is left out of the training looks alike,
    at a multiple of the cost (on AG News, Dblp and HWU64, as many texts of others are found by both). Of sets [n, C],
    by logits [n, 2, C], none of a row's labels exists.
    """
    if logits.shape[-1] < 2:
        return {PROBABILITY: 1.0}
    absent = target > 0
    if target.ndim == 1:
        absent = torch.zeros(logits.shape, dtype=torch.bool).scatter(1, target[:, None], True)
    signs, without = _signs_of_class(outputs, logits), _signs_of_class(outputs, logits, absent)
    others = np.random.default_rng(0).permutation(len(target))
    pairs = {name: torch.stack([signs[name], without[name][others]], dim=1).double() for name in signs}
    scales = {name: max(float(pair.std(correction=0)), _LEAST_SCALE) for name, pair in pairs.items()}
    first = torch.zeros(len(target), dtype=torch.long)
    weights, _ = _maximize_likelihood([pairs[name] / scales[name] for name in signs], first)
    found = {name: weight / scales[name] for name, weight in zip(signs, weights, strict=True) if weight}
    found = {name: weight for name, weight in found.items() if scales[name] > _LEAST_SCALE}
    return found or {PROBABILITY: 1.0}


def _signs_of_class(
    outputs: Mapping[str, Outputs], logits: Tensor, absent: Tensor | None = None
) -> dict[str, Tensor]:
    """`PROBABILITY` or vote -> how much texts look like those of some class [n], not counting absent ones [n, C]."""
    if logits.ndim == 3:
        logs = logits.log_softmax(dim=1)[:, 1]
        logs = logs if absent is None else torch.where(absent, logs.amin(dim=1, keepdim=True), logs)
    else:
        logs = (logits if absent is None else logits.masked_fill(absent, -math.inf)).log_softmax(dim=1)
    signs = {PROBABILITY: logs.amax(dim=1)}
    for name, vote in outputs.items():
        if isinstance(vote, Votes) and vote.standard is not None:
            score = vote.standard.float().masked_fill(~vote.mask, 0.0)
            if absent is not None:  # memories that were not retrieved have at most the lowest score
                labels = vote.target.reshape(*vote.mask.shape, -1).clamp(min=-1)
                found = functional.pad(absent, (0, 1))[torch.arange(len(labels))[:, None, None], labels]
                is_absent = found.any(dim=2)
                score = torch.where(is_absent, score.amin(dim=1, keepdim=True), score)
            score = functional.pad(score, (0, max(0, _NEAREST - score.shape[1])))
            signs[name] = score.topk(_NEAREST, dim=1).values.mean(dim=1)
    return signs


def _loses(
    first: Mapping[str, float], second: Mapping[str, float], logs: Mapping[str, Tensor], target: Tensor
) -> bool:
    """Return whether the first weights classify significantly fewer rows correctly than the second ones do."""
    pooled = (sum((each[name] * logs[name] for name in each), torch.zeros(())) for each in (first, second))
    right = [(each.argmax(dim=1) == target).double() for each in pooled]
    gains = right[0] - right[1]
    return float(gains.sum()) < -_STANDARD_ERRORS * math.sqrt(float((gains**2).sum()))


def fit_weights(logs: Mapping[str, Tensor], target: Tensor, trusted: str | None = None) -> dict[str, float]:
    """Weights >= 0 of the highest likelihood of classes [n] by `logs` [n, C], or of sets [n, C] by those [n, 2, C].

    A member stays if the rows' log-likelihood loses without it more than `PRICE`, and significantly: a few rows like
    nearly everything. Without any, all classes are equal. The member that is `trusted` always stays, and weights are
    near 1 for it and 0 for others as far as rows do not speak against it: 24 rows take any member for the best.
    """
    stacked = {name: values.double() for name, values in logs.items()}
    blank = torch.zeros_like(next(iter(stacked.values())))

    def fit(names: Sequence[str]) -> tuple[list[float], NDArray[np.float64]]:
        prior = None if trusted is None else [float(name == trusted) for name in names]
        return _maximize_likelihood([stacked[name] for name in names] or [blank], target, prior)

    kept = list(stacked)
    weights, losses = fit(kept)
    while others := {name: [each for each in kept if each != name] for name in kept if name != trusted}:
        without = {name: fit(rest) for name, rest in others.items()}
        # Among equals the last is dropped.
        least = min(reversed(others), key=lambda name: without[name][1].sum())
        gains = without[least][1] - losses
        if gains.sum() > max(PRICE, _STANDARD_ERRORS * gains.std() * math.sqrt(len(target))):
            break
        kept, (weights, losses) = others[least], without[least]
    return {name: weights[kept.index(name)] if name in kept else 0.0 for name in logs}


def _maximize_likelihood(
    logs: Sequence[Tensor], target: Tensor, prior: Sequence[float] | None = None
) -> tuple[list[float], NDArray[np.float64]]:
    """The weights that minimize the sum of the negative log-likelihoods of n rows, and these [n]: a convex problem.

    With the means of a normal prior, its negative log-density is added.
    """
    from scipy.optimize import minimize

    stacked = torch.stack(list(logs))  # [members, n, C] or [members, n, 2, C]
    means = None if prior is None else stacked.new_tensor(prior)

    def losses(weights: Tensor) -> Tensor:
        pooled = torch.tensordot(weights, stacked, dims=1)
        return functional.cross_entropy(pooled, target, reduction="none").reshape(len(target), -1).sum(dim=1)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = torch.tensor(values, requires_grad=True)
        likelihood = losses(weights).mean()
        if means is not None:
            likelihood = likelihood + _PRECISION / 2 * ((weights - means) ** 2).sum() / len(target)
        likelihood.backward()  # type: ignore[no-untyped-call]
        assert weights.grad is not None
        return likelihood.item(), weights.grad.numpy()

    # An upper bound: where held-out rows are few and all are right, no weight is too large.
    bounds = [(0.0, 5.0)] * len(logs)
    start = np.full(len(logs), 1 / len(logs))
    solved = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B")
    return [float(weight) for weight in solved.x], losses(torch.from_numpy(solved.x)).numpy()


def folds_of(target: NDArray[np.int64], folds: int, groups: NDArray[np.integer]) -> NDArray[np.int64]:
    """The fold 0..folds-1 of each row [n], equal in groups [n]: at random, each class or rarest label spread evenly."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    own = target[first]
    if own.ndim == 2:  # the rarest label of each row; none is a class, too
        counts = np.append(own.sum(axis=0), len(own))
        padded = np.pad(own, ((0, 0), (0, 1)), constant_values=1)
        own = np.where(padded > 0, counts, len(own) + 1).argmin(axis=1)
    order = np.random.default_rng(0).permutation(len(own))
    by_class = order[np.argsort(own[order], kind="stable")]
    numbers = np.empty(len(own), np.int64)
    numbers[by_class] = np.arange(len(own)) % folds
    return numbers[group.reshape(-1)]
