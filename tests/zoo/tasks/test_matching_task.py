"""Ranking measures against `ir-measures`, for ties over all their orders; losses against plain loops; steps."""

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules import MatchingDataModule
from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from tests.zoo.baselines.pairs import make_batch
from tests.zoo.conftest import pair_rows, trainer, write_pairs
from zoo.baselines.pair_networks import ANMM
from zoo.tasks.matching.metrics import NAMES, MatchingScores, measure_lists
from zoo.tasks.matching.task import cross_entropy_terms, hinge_terms, softmax_terms
from zoo.tasks.outputs import MatchingOutput

#: Scores and grades of each question's candidates.
Lists = list[tuple[list[float], list[float]]]
MEASURES = {
    "map": ir_measures.AP,
    "mrr": ir_measures.RR,
    "p@1": ir_measures.P @ 1,
    **{f"ndcg@{k}": ir_measures.nDCG @ k for k in (1, 3, 5, 10)},
}


def random_lists(seed: int, number: int = 20, grades: int = 2, ties: bool = False) -> Lists:
    random = np.random.default_rng(seed)
    lists = []
    for _ in range(number):
        size = int(random.integers(1, 7 if ties else 30))
        scores = random.integers(0, 3, size).astype(float) if ties else random.permutation(size) / 7 - 1
        lists.append((scores.tolist(), random.integers(0, grades, size).astype(float).tolist()))
    return lists


def flat(lists: Lists) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, grades and list numbers of all candidates."""
    number = [i for i, (scores, _) in enumerate(lists) for _ in scores]
    score, target = (torch.tensor(list(itertools.chain(*(pair[i] for pair in lists)))) for i in (0, 1))
    return score.float(), target.float(), torch.tensor(number, dtype=torch.long)


def batch_of(lists: Lists, **changes: Tensor) -> MatchingBatch:
    """A batch of these lists, as far as losses and scores read it."""
    _, target, number = flat(lists)
    place = torch.tensor([i for scores, _ in lists for i in range(len(scores))], dtype=torch.long)
    fields = {"query": number, "place": place, "target": target, "weight": torch.ones(len(target))}
    return make_batch()._replace(**{**fields, **changes})


def by_ir_measures(lists: Lists) -> list[dict[str, float]]:
    """The mean of each measure over all orders of a list's candidates that agree with their scores."""
    run, judged = [], []
    for number, (scores, grades) in enumerate(lists):
        best = sorted(range(len(scores)), key=lambda i: -scores[i])
        ties = [[*group] for _, group in itertools.groupby(best, key=scores.__getitem__)]
        for order in itertools.product(*map(itertools.permutations, ties)):
            query = f"{number} {order}"
            for rank, i in enumerate(itertools.chain(*order)):
                run.append(ir_measures.ScoredDoc(query, str(i), -rank))
                judged.append(ir_measures.Qrel(query, str(i), int(grades[i])))
    values: list[dict[Any, list[float]]] = [defaultdict(list) for _ in lists]
    for measured in ir_measures.iter_calc(MEASURES.values(), judged, run):
        values[int(measured.query_id.split()[0])][measured.measure].append(measured.value)
    return [{name: np.mean(each[measure]) for name, measure in MEASURES.items()} for each in values]


def as_rows(lists: Lists) -> list[dict[str, float]]:
    return [
        dict(zip(NAMES, row, strict=True)) for row in measure_lists(flat(lists)[0], batch_of(lists)).tolist()
    ]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("grades", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_equal_ir_measures_whose_mean_over_all_orders_counts_for_ties(
    seed: int, grades: int, ties: bool
) -> None:
    lists = random_lists(seed, grades=grades, ties=ties)
    assert any(len(set(scores)) < len(scores) for scores, _ in lists) == ties
    expected = by_ir_measures(lists)
    for measures, of_list in zip(as_rows(lists), expected, strict=True):
        assert measures == pytest.approx(of_list, abs=1e-6)
    means, counted = ranking_scores(lists), [any(target) for _, target in lists]
    for name in MEASURES:
        mean = np.mean([of_list[name] for of_list in itertools.compress(expected, counted)])
        assert means[name] == pytest.approx(mean, abs=1e-6)


def test_a_long_list_of_ties_is_exact() -> None:
    n, r = 5000, 3
    (measures,) = as_rows([([1.0] * n, [1.0] * r + [0.0] * (n - r))])
    # E[1 / rank of the first]: each rank j is the first with probability C(n-j, r-1) / C(n, r).
    expected = sum(math.comb(n - j, r - 1) / math.comb(n, r) / j for j in range(1, n - r + 2))
    assert measures["mrr"] == pytest.approx(expected, rel=1e-9)


def test_nan_ranks_last() -> None:
    (measures,) = as_rows([([math.nan, 0.0, -5.0], [1.0, 0.0, 0.0])])
    assert measures["mrr"] == pytest.approx(1 / 3)


def ranking_scores(lists: Lists, batch_size: int = 7) -> dict[str, float]:
    scores = MatchingScores("ranking")
    for start in range(0, len(lists), batch_size):
        part = lists[start : start + batch_size]
        scores.update(flat(part)[0], torch.ones(2), batch_of(part))
    return {name: float(value) for name, value in scores.compute().items()}


def test_scores_do_not_depend_on_the_batches() -> None:
    lists = random_lists(5, number=40, ties=True)
    assert ranking_scores(lists, 3) == ranking_scores(lists, 40) | {"loss": 1.0}


def test_questions_without_a_positive_are_counted_and_excluded() -> None:
    lists: Lists = [([2.0, 1.0], [1.0, 0.0]), ([2.0, 1.0], [0.0, 0.0]), ([2.0, 1.0], [0.0, 1.0])]
    excluded = ranking_scores(lists)
    assert (excluded["map"], excluded["questions"], excluded["questions_without_positive"]) == (0.75, 2, 1)


def test_without_a_positive_there_are_no_means() -> None:
    lists: Lists = [([2.0, 1.0], [0.0, 0.0])]
    scores = ranking_scores(lists)
    assert scores.keys() == {"loss", "pairs", "questions", "questions_without_positive"}
    assert scores["questions_without_positive"] == 1
    pairs = MatchingScores("classification")
    pairs.update(torch.ones(2), torch.ones(2), batch_of([([1.0], [1.0])] * 2))
    assert pairs.compute().keys() == {"accuracy", "loss", "pairs"}


def test_padding_and_unknown_pairs_count_nothing() -> None:
    lists = random_lists(6, number=9, ties=True)
    score, target, number = flat(lists)
    is_kept = number % 3 > 0
    expected = ranking_scores([pair for i, pair in enumerate(lists) if i % 3 > 0], 9)
    for changes in ({"weight": is_kept.float()}, {"target": target.where(is_kept, torch.nan)}):
        scores = MatchingScores("ranking")
        scores.update(score, torch.ones(2), batch_of(lists, **changes))
        assert {name: float(value) for name, value in scores.compute().items()} == expected


def test_graded_candidates_have_no_area_under_curve() -> None:
    assert "auc" in ranking_scores([([2.0, 1.0], [1.0, 0.0])])
    assert "auc" not in ranking_scores([([2.0, 1.0], [2.0, 0.0])])


def test_scores_of_pairs() -> None:
    scores = MatchingScores("classification")
    lists: Lists = [([0.5], [1.0]), ([-1.0], [0.0]), ([0.0], [1.0]), ([2.0], [0.0]), ([9.0], [1.0])]
    batch = batch_of(lists, weight=torch.tensor([1.0, 1, 1, 1, 0]))
    scores.update(flat(lists)[0], torch.tensor([0.25, 0.75]), batch)
    values = {name: float(value) for name, value in scores.compute().items()}
    # Of the four positive-negative comparisons, .5 and 0 lie above -1 and below 2.
    assert values == {"accuracy": 0.5, "auc": 0.5, "loss": 0.5, "pairs": 4}


def test_nothing_to_count_is_finite() -> None:
    for scores in (MatchingScores("ranking"), MatchingScores("classification")):
        scores.update(torch.zeros(0), torch.zeros(0), batch_of([]))
        assert all(math.isfinite(value) for value in scores.compute().values())


#: Two grades above 0; no positive; no negative; three grades.
MIXED: Lists = [([0.3, -0.2, 1.5, 0.1], [2.0, 0.0, 1.0, 0.0]), ([1.0, 2.0], [0.0, 0.0]), ([0.7], [1.0])]
MIXED += [([-1.0, 0.4, 0.2], [1.0, 0.0, 0.0])]


def test_hinge_equals_loops() -> None:
    expected = []
    for scores, grades in MIXED:
        missing = [
            max(0.0, 0.8 - scores[i] + scores[j])
            for i in range(len(scores))
            for j in range(len(scores))
            if grades[i] > grades[j]
        ]
        if missing:
            expected.append(sum(missing) / len(missing))
    terms = hinge_terms(flat(MIXED)[0].double(), batch_of(MIXED), margin=0.8)
    assert terms.tolist() == pytest.approx(expected, rel=1e-6)


def test_softmax_equals_loops() -> None:
    expected = []
    for scores, grades in MIXED:
        if any(grades):
            normalizer = sum(math.exp(score) for score in scores)
            expected.append(
                -sum(
                    grade / sum(grades) * math.log(math.exp(score) / normalizer)
                    for score, grade in zip(scores, grades, strict=True)
                )
            )
    score = flat(MIXED)[0].double().requires_grad_()
    terms = softmax_terms(score, batch_of(MIXED))
    assert terms.tolist() == pytest.approx(expected, rel=1e-6)
    terms.sum().backward()
    assert score.grad.isfinite().all()


def test_cross_entropy_of_one_and_of_two_logits() -> None:
    score, target, _ = flat(MIXED)
    expected = [
        -math.log(1 / (1 + math.exp(-number if grade else number)))
        for number, grade in zip(score.tolist(), target.tolist(), strict=True)
    ]
    assert cross_entropy_terms(score[:, None], batch_of(MIXED)).tolist() == pytest.approx(expected, rel=1e-5)
    two = torch.stack([torch.ones_like(score), score + 1], dim=1)
    assert cross_entropy_terms(two, batch_of(MIXED)).tolist() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(MatchingOutput(two).score, score)


@pytest.mark.parametrize("loss", ["hinge", "softmax", "cross_entropy"])
def test_padding_pairs_have_no_loss(loss: Any) -> None:
    weight = (flat(MIXED)[2] > 0).float()
    output = MatchingOutput(flat(MIXED)[0][:, None])
    task = ANMM(loss=loss)
    task.spec = MatchingSpec(300, 0, "ranking")
    terms = task.loss_terms(output, batch_of(MIXED, weight=weight))
    rest = MatchingOutput(output.logits[4:])
    torch.testing.assert_close(terms, task.loss_terms(rest, batch_of(MIXED[1:])))


@pytest.mark.parametrize(
    ("goal", "loss", "shown"),
    [
        ("ranking", "hinge", "map"),
        ("ranking", "softmax", "map"),
        ("ranking", "cross_entropy", "map"),
        ("classification", "cross_entropy", "auc"),
    ],
)
def test_a_task_learns(goal: Any, loss: Any, shown: str, tmp_path: Path) -> None:
    pl.seed_everything(3, verbose=False)
    pairs = str(write_pairs(tmp_path / "pairs.tsv", pair_rows(24, seed=8)))
    data = MatchingDataModule(train_file=pairs, validation_file=pairs, test_file=pairs, goal=goal)
    task = ANMM(word_size=12, loss=loss, optimizer=lambda weights: torch.optim.Adam(weights, lr=0.05))
    run = trainer(tmp_path, max_epochs=30)
    run.fit(task, datamodule=data)
    assert run.callback_metrics[f"val/{shown}"] > 0.99
    assert run.callback_metrics["train/loss"].isfinite()
    assert run.test(task, datamodule=data, verbose=False)[0][f"test/{shown}"] > 0.99
    assert (task.probability(torch.zeros(1)) is not None) == (loss == "cross_entropy")


def test_a_batch_without_anything_to_compare_trains_nothing(
    adapters: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, task = adapters("ranking"), ANMM(word_size=12)
    batch = adapter.batch._replace(target=torch.zeros_like(adapter.batch.target))
    monkeypatch.setattr(adapter.data, "train_dataloader", lambda: DataLoader([batch], batch_size=None))
    trainer(tmp_path, fast_dev_run=1).fit(task, datamodule=adapter.data)
    assert all(weight.isfinite().all() for weight in task.parameters())


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_weights_in_half_precision_are_refused(precision: Any, adapters: Any, tmp_path: Path) -> None:
    run = trainer(tmp_path, max_epochs=1, precision=precision)
    with pytest.raises(InputError, match=f"trainer.precision={precision}: .* use .*-mixed"):
        run.fit(ANMM(), datamodule=adapters("ranking").data)
