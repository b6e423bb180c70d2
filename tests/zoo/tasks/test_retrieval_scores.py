"""Measures of rankings against those of lists, recall by hand, and means on any number of processes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.tasks.matching.metrics import NAMES as MATCHING_NAMES
from zoo.tasks.matching.metrics import measure_lists
from zoo.tasks.ranking_measures import Judged, measure_rankings
from zoo.tasks.retrieval.metrics import NAMES, RetrievalScores, selected_mixture
from zoo.tasks.retrieval.predictor import retriever_scores


def drawn(
    queries: int, documents: int, judged: int, seed: int, levels: int | None = None
) -> tuple[Tensor, Judged]:
    """Scores [queries, documents], of so many different values (None: all differ), and judgements of some."""
    random = np.random.default_rng(seed)
    score = random.permuted(np.tile(np.arange(documents), (queries, 1)), axis=1).astype(np.float32)
    if levels is not None:
        score = np.floor(score * levels / documents)
    chosen = np.stack([random.permutation(documents)[:judged] for _ in range(queries)])
    grade = random.integers(0, 4, size=chosen.size).astype(np.float32)
    query = np.repeat(np.arange(queries), judged)
    return torch.from_numpy(score), Judged(*map(torch.from_numpy, (query, chosen.reshape(-1), grade)))


@pytest.mark.parametrize("levels", [1, 2, 5, 40, None])
def test_measures_are_those_of_lists(levels: int | None) -> None:
    """Scores that equal those of ir-measures, and the means over all orders of ties."""
    score, judged = drawn(queries=6, documents=60, judged=25, seed=levels or 0, levels=levels)
    target = torch.zeros_like(score).index_put((judged.query, judged.document), judged.grade)
    query, place = (
        each.flatten() for each in torch.meshgrid(torch.arange(6), torch.arange(60), indexing="ij")
    )
    batch: Any = SimpleNamespace(target=target.flatten(), weight=torch.ones(360), query=query, place=place)
    expected = measure_lists(score.flatten(), batch)
    measured = measure_rankings(score, judged, NAMES)
    for name in ("ndcg@1", "ndcg@3", "ndcg@10", "map", "mrr"):
        column = expected[:, MATCHING_NAMES.index(name)]
        torch.testing.assert_close(measured[:, NAMES.index(name)], column, atol=1e-10, rtol=0)


def test_recall_of_ties_is_the_mean_over_their_orders() -> None:
    # 150 documents: 40 good ones, then 110 of one score; of 10 relevant ones, 2 are good and 8 tied.
    score = torch.cat([torch.ones(40), torch.zeros(110)])[None]
    document = torch.tensor([0, 39, *range(60, 68)])
    judged = Judged(torch.zeros(10, dtype=torch.long), document, torch.ones(10))
    measured = measure_rankings(score, judged, NAMES)[0, NAMES.index("recall@100")]
    assert float(measured) == pytest.approx((2 + 8 * 60 / 110) / 10)


def test_a_query_without_relevant_documents_has_zeros() -> None:
    judged = Judged(torch.tensor([1, 1]), torch.tensor([0, 2]), torch.tensor([0.0, 2.0]))
    measured = measure_rankings(torch.eye(2, 3), judged, NAMES)
    assert not measured[0].any()
    assert measured[1, NAMES.index("map")] > 0
    assert measure_rankings(torch.zeros(2, 3), Judged(*(part[:0] for part in judged)), NAMES).sum() == 0


def test_documents_that_are_no_candidates_come_last() -> None:
    score = torch.tensor([[3.0, torch.nan, 1.0, -torch.inf]])
    judged = Judged(torch.tensor([0]), torch.tensor([2]), torch.tensor([1.0]))
    assert float(measure_rankings(score, judged, NAMES)[0, NAMES.index("mrr")]) == 0.5


def counted(order: list[int], score: Tensor, judged: Judged, mixtures: int = 1) -> RetrievalScores:
    scores = RetrievalScores(mixtures)
    for row in order:
        own = judged.query == row
        part = Judged(judged.query[own] * 0, judged.document[own], judged.grade[own])
        given = [score[row : row + 1] * (1 if number == 0 else -1) for number in range(mixtures)]
        batch: Any = SimpleNamespace(
            row=torch.tensor([row]), weight=torch.ones(1), is_duplicate=torch.zeros(1) > 0
        )
        scores.update(given, part, torch.ones(1), batch)
    return scores


def test_means_do_not_depend_on_the_order() -> None:
    score, judged = drawn(queries=9, documents=50, judged=12, seed=4)
    one = counted(list(range(9)), score, judged).compute()
    other = counted([5, 2, 8, 0, 1, 7, 3, 6, 4], score, judged).compute()
    assert one == other
    expected = measure_rankings(score, judged, NAMES).mean(dim=0)
    for name, value in zip(NAMES, expected.tolist(), strict=True):
        assert float(one[name]) == pytest.approx(value, abs=1e-11)


def test_the_best_mixture_is_told_with_its_queries() -> None:
    score, judged = drawn(queries=5, documents=40, judged=10, seed=9)
    grades = torch.zeros_like(score).index_put((judged.query, judged.document), judged.grade)
    scores = counted(list(range(5)), -grades, judged, mixtures=2)
    measured = scores.compute()
    assert scores.best == 1
    assert float(measured["ndcg@10"]) == pytest.approx(1)
    assert scores.by_query == pytest.approx(dict.fromkeys(range(5), 1.0))


def test_of_mixtures_that_are_equally_good_the_retrievers_weight_is_the_largest() -> None:
    # The second is best; the third loses less than its standard error, the fourth much more.
    values = torch.tensor(
        [[0.2, 0.6, 0.7, 0.1], [0.3, 0.5, 0.2, 0.2], [0.1, 0.7, 0.8, 0.1], [0.2, 0.6, 0.6, 0]]
    )
    assert int(values.mean(dim=0).argmax()) == 1
    assert selected_mixture(values) == 2
    values[:, 2] -= 0.3
    assert selected_mixture(values) == 1
    # A single query has no standard error.
    assert selected_mixture(torch.tensor([[0.1, 0.5, 0.4]])) == 1
    assert selected_mixture(torch.tensor([[0.5, 0.5, 0.4]])) == 1


def test_a_retrievers_scores_are_shares_of_the_best_hit() -> None:
    hit = torch.tensor([[2, 0, -1], [-1, -1, -1], [1, 3, 2]])
    score = torch.tensor([[8.0, 2.0, 0.0], [0.0, 0.0, 0.0], [4.0, 2.0, 1.0]])
    expected = [[0.25, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0.25, 0.5]]
    assert retriever_scores(hit, score, 4).tolist() == expected
