"""Calibrations and weights of members, against plain loops and known answers."""

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.ensemble.outputs import Scores, Votes
from zoo.ensemble.pool import (
    PROBABILITY,
    HeldOut,
    Pool,
    _signs_of_class,
    fit_familiarity,
    fit_pool,
    fit_weights,
    folds_of,
)
from zoo.layers.vote import count_votes


def _member(target: Tensor, accuracy: float, seed: int) -> Tensor:
    """Calibrated log probabilities of a member that predicts the right class of three this often."""
    random = np.random.default_rng(seed)
    wrong = (target.numpy() + random.integers(1, 3, len(target))) % 3
    predicted = np.where(random.random(len(target)) < accuracy, target, wrong)
    logs = torch.full((len(target), 3), math.log((1 - accuracy) / 2))
    logs[torch.arange(len(target)), torch.from_numpy(predicted)] = math.log(accuracy)
    return logs


def test_independent_calibrated_members_get_their_full_weight_and_noise_gets_none() -> None:
    target = torch.from_numpy(np.random.default_rng(0).integers(0, 3, 4000))
    logs = {
        "good": _member(target, 0.7, 1),
        "fair": _member(target, 0.5, 2),
        "noise": _member(target, 1 / 3, 3),
    }
    logs["noise"] += torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).mul(0.5)
    weights = fit_weights(logs, target)
    assert weights["good"] == pytest.approx(1, abs=0.15)
    assert weights["fair"] == pytest.approx(1, abs=0.25)
    assert weights["noise"] == 0
    combined = Pool({}, {"all": weights}).combine(logs).argmax(dim=1)
    assert (combined == target).double().mean() >= (logs["good"].argmax(dim=1) == target).double().mean()


def test_of_equal_members_the_first_is_kept() -> None:
    target = torch.from_numpy(np.random.default_rng(0).integers(0, 3, 300))
    same = _member(target, 0.6, 1)
    assert fit_weights(dict.fromkeys("abc", same), target) == {"a": pytest.approx(1, abs=0.3), "b": 0, "c": 0}


def test_a_gain_below_its_standard_error_does_not_count() -> None:
    target = torch.from_numpy(np.random.default_rng(2).integers(0, 3, 16))
    few = {"good": _member(target, 0.8, 102), "fair": _member(target, 0.5, 202)}
    assert fit_weights(few, target)["fair"] == fit_weights(few, target, "good")["fair"] == 0
    assert fit_weights(few, target, "fair")["fair"] > 0.8  # although the other one is better on these rows
    # The gain of the same rows 25 times is 25 times as large, and its standard error 5 times.
    many = {name: each.repeat(25, 1) for name, each in few.items()}
    assert fit_weights(many, target.repeat(25))["fair"] > 1


def test_by_a_few_rows_that_are_all_right_no_answer_is_certain() -> None:
    target = torch.arange(12) % 2
    scores = Scores(torch.eye(2)[target] * 9)
    pool = fit_pool(HeldOut({"a": scores, "b": scores}, target, np.arange(12)))
    assert 0.9 < float(scores.log_probabilities(pool.calibrations["a"]).exp().max()) < 0.98
    assert all(math.isfinite(weight) for weight in pool.weights["all"].values())
    assert Pool.of(json.loads(json.dumps(pool.describe()))) == pool


def test_a_vote_equals_plain_loops() -> None:
    score = torch.tensor([[4.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    target = torch.tensor([[0, 1, 1], [2, 0, 0], [0, 0, 0]])
    probabilities = Votes(score, mask, target, 3).log_probabilities((2.0, 0.3)).exp()
    for row in range(3):
        scores = [float(value) if known else 0.0 for value, known in zip(score[row], mask[row], strict=True)]
        shares = [(value / (max(scores) or 1.0)) ** 2 for value in scores]
        total = sum(shares) or 1.0
        votes = [0.0] * 3
        for share, label in zip(shares, target[row].tolist(), strict=True):
            votes[label] += share / total
        for c in range(3):
            expected = (votes[c] + 0.1) / (sum(votes) + 0.3)
            assert float(probabilities[row, c]) == pytest.approx(expected, abs=1e-5)
    # Unknown classes have none.
    known = count_votes(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1, -100, 1]]), 3)
    assert known[0].tolist() == pytest.approx([0.0, 0.7, 0.0])


def test_a_sharp_vote_is_chosen_where_the_nearest_memory_is_right() -> None:
    target = torch.arange(60) % 3
    score = torch.tensor([[1.0, 0.9, 0.9]]).repeat(60, 1)
    memories = torch.stack([target, (target + 1) % 3, (target + 1) % 3], dim=1)
    votes = Votes(score, torch.ones(60, 3, dtype=torch.bool), memories, 3)
    assert votes.best_calibration(target)[0] >= 20
    assert votes.best_calibration((target + 1) % 3)[0] == 0


def test_familiarity_is_what_a_row_loses_without_its_class() -> None:
    """Nearness counts where others' memories are far; the probability does where it is low without the own class."""
    random = np.random.default_rng(0)
    target = torch.from_numpy(random.integers(0, 4, 400))
    own = torch.nn.functional.one_hot(target, 4)
    classes = torch.stack([target, (target + 1) % 4, (target + 2) % 4, target], dim=1)
    mask, numbers = torch.ones(400, 4, dtype=torch.bool), torch.zeros(400, 4, dtype=torch.long)
    equal, near = torch.full((400, 4), 2.0), torch.tensor([9.0, 2.0, 1.0, 8.0]).repeat(400, 1)

    def fitted(standard: Tensor, logits: Tensor) -> dict[str, float]:
        vote = Votes(near, mask, classes, 4, numbers, standard)
        return fit_familiarity({"vote": vote, "lexical": Votes(near, mask, classes, 4)}, logits, target)

    torch.manual_seed(0)
    noise = 0.1 * torch.rand(400, 4)
    assert fitted(near, torch.zeros(400, 4)).keys() == {"vote"}
    assert fitted(equal, 5 * own + noise).keys() == {PROBABILITY}
    assert fitted(near, noise - 5 * own).keys() == {"vote"}  # what speaks against the own class never counts
    assert fitted(equal, noise - 5 * own) == {PROBABILITY: 1.0}
    assert fit_familiarity({}, torch.zeros(5, 1), torch.zeros(5).long()) == {PROBABILITY: 1.0}
    # By hand: three memories, those of the class 0 as far as the farthest; the second class's logit alone is left.
    standard = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    vote = Votes(standard, mask[:1], torch.tensor([[0, 1, 0, 1]]), 2, numbers[:1], standard)
    logits = torch.tensor([[math.log(3), 0.0]])
    signs = [
        _signs_of_class({"vote": vote}, logits, absent) for absent in (None, torch.tensor([[True, False]]))
    ]
    assert [float(each["vote"]) for each in signs] == pytest.approx([2.0, 2 / 3])
    assert [float(each[PROBABILITY]) for each in signs] == pytest.approx([math.log(0.75), 0.0])
    empty = vote.each(lambda each: each[:, :0])
    assert float(_signs_of_class({"vote": empty}, logits)["vote"]) == 0  # no memory is near
    pool = Pool({}, {}, familiar={PROBABILITY: 2.0, "vote": 0.5})
    assert float(pool.familiarity({"vote": vote}, logits)) == pytest.approx(2 * math.log(0.75) + 1)


def test_folds_divide_each_class_evenly() -> None:
    target = np.repeat([0, 1, 2], [50, 25, 3])
    folds = folds_of(target, 5, np.arange(len(target)))
    counts = np.array([np.bincount(folds[target == c], minlength=5) for c in range(3)])
    assert counts.max(axis=1).tolist() == [10, 5, 1]
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 1
    groups = np.arange(78) // 2
    assert all(len(set(folds_of(target, 5, groups)[groups == group])) == 1 for group in set(groups))
