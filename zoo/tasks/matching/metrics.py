"""How well candidates are ranked, and pairs classified: exact on any number of processes, neutral to ties.

Candidates of equal score have no order, so a measure of a ranking with ties is its mean over all orders of the
tied candidates: neither the order of a file nor a sort's habits can earn anything. The mean has a closed form.
Take a group of n tied candidates, r of them relevant, that starts after a better candidates, of which R are
relevant. In a random order, the candidate at place j of the group (rank a + j) has these expectations:

- it is relevant: r/n, so precision at 1 is r/n of the first group;
- its gain: the mean gain of the group, which divided by log2(a + j + 1) and summed gives DCG;
- relevance times precision at its rank (Σ over ranks / all relevant = average precision):
  r/n · (R + 1 + (j-1)(r-1)/(n-1)) / (a + j), because of the j-1 candidates before it in the group, given
  that it is relevant, each is relevant with probability (r-1)/(n-1);
- it is the first relevant one of its group: C(n-j, r-1) / C(n, r), which in the first group that has a relevant
  candidate, times 1/(a + j) and summed, gives the reciprocal rank.

Source: McSherry and Najork, "Computing information retrieval performance measures efficiently in the presence
of tied scores", ECIR 2008 (derived anew here).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

#: Cut-offs of NDCG.
CUTOFFS = (1, 3, 5, 10)

#: Means are summed as whole numbers of this many parts of 1: a sum of integers does not depend on its order, so
#: two processes print the digits of one. 2^40 keeps 12 decimals and leaves room for 8 million questions.
PARTS = 2**40


class ListMeasures(NamedTuple):
    """Measures of each list, float64; what a list without a relevant candidate has is 0."""

    #: [B]: average precision.
    map: Tensor
    #: [B]: one over the rank of the first relevant candidate.
    mrr: Tensor
    #: [B, len(CUTOFFS)]: DCG with gain = grade and discount log2(rank + 1), over that of the ideal order.
    ndcg: Tensor
    #: [B]: whether the first candidate is relevant.
    p1: Tensor
    #: bool [B]: whether there is a relevant candidate.
    has_positive: Tensor


def measure_lists(score: Tensor, target: Tensor, query: Tensor) -> ListMeasures:
    """Measure rankings, each the mean over all orders of its tied candidates.

    Args:
        score: [P]; higher is ranked before lower, nan last.
        target: [P]: grades; above 0 = relevant.
        query: int64 [P]: the list of each candidate, 0..B-1, in any order; every list has a candidate.
    """
    score = score.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    target = target.double()
    num_lists = int(query.max()) + 1 if len(query) else 0
    lists = RankedLists.ranked(score, query, num_lists)

    # Of each group of tied candidates: size, start, relevant ones in it and before it.
    ranked_target = target[lists.order]
    relevant = (ranked_target > 0).double()
    new_group = torch.ones_like(lists.query, dtype=torch.bool)
    ranked_score = score[lists.order]
    new_group[1:] = (ranked_score[1:] != ranked_score[:-1]) | (lists.query[1:] != lists.query[:-1])
    group = new_group.cumsum(0) - 1
    num_groups = int(new_group.sum())
    n = _sums(torch.ones_like(relevant), group, num_groups)[group]
    r_of_group = _sums(relevant, group, num_groups)
    r = r_of_group[group]
    a = lists.rank[new_group][group] - 1
    seen = relevant.cumsum(0)
    seen_before = torch.cat([seen.new_zeros(1), seen])
    first_of_group = new_group.nonzero()[:, 0]
    # Relevant candidates of the list before the group.
    before = seen_before[first_of_group][group] - seen_before[lists.start[lists.query]]
    j = lists.rank - a

    total = _sums(relevant, lists.query, num_lists)
    precision = r / n * (before + 1 + (j - 1) * (r - 1) / (n - 1).clamp(min=1)) / lists.rank
    average_precision = _sums(precision, lists.query, num_lists) / total.clamp(min=1)

    # C(n-j, r-1) / C(n, r) by logarithms of factorials; out of range where too few candidates are left.
    possible = (before == 0) & (r > 0) & (n - j >= r - 1)
    first = (
        _log_choose((n - j).where(possible, n), (r - 1).where(possible, n))
        - _log_choose(n, r.where(possible, n))
    ).exp()
    reciprocal = _sums((first / lists.rank).where(possible, 0.0), lists.query, num_lists)

    gain = _sums(ranked_target, group, num_groups)[group] / n
    ideal = RankedLists.ranked(target, query, num_lists)
    ndcg = []
    for k in CUTOFFS:
        dcg = _sums(_discounted(gain, lists.rank, k), lists.query, num_lists)
        best = _sums(_discounted(target[ideal.order], ideal.rank, k), ideal.query, num_lists)
        ndcg.append(torch.where(best > 0, dcg / best, 0.0))

    return ListMeasures(
        map=average_precision,
        mrr=reciprocal,
        ndcg=torch.stack(ndcg, dim=1),
        p1=_sums((r / n).where(lists.rank == 1, 0.0), lists.query, num_lists),
        has_positive=total > 0,
    )


class RankedLists(NamedTuple):
    """Candidates list after list, each list from its best to its worst."""

    #: int64 [P]: the candidates' numbers in this order.
    order: Tensor
    #: int64 [P]: their lists.
    query: Tensor
    #: float64 [P]: their ranks, from 1.
    rank: Tensor
    #: int64 [B]: where a list begins.
    start: Tensor

    @classmethod
    def ranked(cls, score: Tensor, query: Tensor, num_lists: int) -> RankedLists:
        """Order candidates by list, then by falling score."""
        order = score.argsort(descending=True, stable=True)
        order = order[query[order].argsort(stable=True)]
        in_order = query[order]
        size = torch.bincount(query, minlength=num_lists)
        start = size.cumsum(0) - size
        rank = torch.arange(1, len(query) + 1, device=query.device) - start[in_order]
        return cls(order, in_order, rank.double(), start)


def _sums(value: Tensor, group: Tensor, number: int) -> Tensor:
    return value.new_zeros(number).index_add(0, group, value)


def _discounted(gain: Tensor, rank: Tensor, k: int) -> Tensor:
    return (gain / (rank + 1).log2()).where(rank <= k, 0.0)


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()


def area_under_curve(score: Tensor, target: Tensor) -> float | None:
    """Chance that a positive's score is above a negative's, a tie counting half; None where one kind is missing.

    Args:
        score: [P]; nan below all numbers.
        target: [P]; above 0 = positive.
    """
    from sklearn.metrics import roc_auc_score  # a second, that other tasks need not pay

    positive = (target > 0).cpu().numpy()
    if positive.all() or not positive.any():
        return None
    lowest = torch.finfo(torch.float32).min
    return float(roc_auc_score(positive, score.float().nan_to_num(nan=lowest).cpu().numpy()))


class MatchingScores(Metric):
    """What all scores of pairs share: loss and AUC.

    Lightning's processes each see some of the pairs. Counts and means are sums of integers over processes, and
    AUC compares all scores with all scores, so those are gathered.
    """

    full_state_update = False
    loss_sum: Tensor
    loss_terms: Tensor
    pairs: Tensor
    graded: Tensor
    score: list[Tensor]
    target: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("loss_sum", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")
        for name in ("loss_terms", "pairs", "graded"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(
        self,
        score: Tensor,
        target: Tensor,
        weight: Tensor,
        query: Tensor,
        loss: Tensor,
        is_copy: Tensor | None = None,
    ) -> None:
        """Count a batch.

        Args:
            score: [P].
            target: [P] grades; nan = unknown, not counted.
            weight: [P], 0 for pairs that only pad a batch.
            query: int64 [P]: the list (question) of each pair; a list is in one batch only.
            loss: [n]: the terms that the loss is the mean of, of counted pairs.
            is_copy: bool [P]: pairs that scores without copies leave out, all of a question to rank or none;
                None = none.
        """
        counted = (weight > 0) & ~target.isnan()
        score, target, query = score[counted].detach().float(), target[counted].float(), query[counted]
        self.loss_sum += loss.detach().double().sum()
        self.loss_terms += len(loss)
        self.pairs += len(score)
        self.graded += ((target != 0) & (target != 1)).sum()
        self.score.append(score)
        self.target.append(target)
        other = torch.ones_like(counted) if is_copy is None else ~is_copy
        self.count(score, target, query, other[counted])

    def count(self, score: Tensor, target: Tensor, query: Tensor, other: Tensor) -> None:
        """Add what one kind of scores counts; arguments as in `update`, of counted pairs only; `other`: no copies."""
        raise NotImplementedError

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; AUC where there are two grades only, and pairs of both."""
        scores = {"loss": self.loss_sum / self.loss_terms.clamp(min=1)}
        if self.graded == 0 and self.pairs > 0:
            score, target = (_joined(state) for state in (self.score, self.target))
            if (area := area_under_curve(score, target)) is not None:
                scores["auc"] = self.loss_sum.new_tensor(area)
        return {**scores, "pairs": self.pairs.double()}


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    # Gathered from several processes, it is one tensor already.
    return state if isinstance(state, Tensor) else torch.cat(state)


class RankingScores(MatchingScores):
    """MAP, MRR, NDCG@k, P@1 of questions' candidates, all candidates of a question in one batch.

    A question without a relevant candidate cannot be ranked well or badly. Such questions are left out of the
    means and counted, or kept as zeros, which some publications do.
    """

    questions: Tensor
    questions_without_positive: Tensor
    other_questions: Tensor
    sums: Tensor
    other_sums: Tensor

    def __init__(self, keep_questions_without_positive: bool = False) -> None:
        super().__init__()
        self.keep = keep_questions_without_positive
        self.names = ["map", "mrr", *(f"ndcg@{k}" for k in CUTOFFS), "p@1"]
        for name in ("sums", "other_sums"):
            self.add_state(name, torch.zeros(len(self.names), dtype=torch.long), dist_reduce_fx="sum")
        for name in ("questions", "questions_without_positive", "other_questions"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def count(self, score: Tensor, target: Tensor, query: Tensor, other: Tensor) -> None:
        """Measure the batch's lists."""
        query = torch.unique(query, return_inverse=True)[1]
        found = measure_lists(score, target, query)
        values = torch.cat([found.map[:, None], found.mrr[:, None], found.ndcg, found.p1[:, None]], dim=1)
        parts = (values * PARTS).round().long()
        measured = torch.ones_like(found.has_positive) if self.keep else found.has_positive
        others = torch.zeros_like(measured).index_put((query,), other)
        self.sums += parts.sum(dim=0)
        self.questions += measured.sum()
        self.other_sums += parts[others].sum(dim=0)
        self.other_questions += (measured & others).sum()
        self.questions_without_positive += (~found.has_positive).sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; `questions` are those that the means are over. Without one, there are no means.

        Means without copies are there if some of these questions are copies, and not all.
        """
        means: dict[str, Tensor] = {}
        if self.questions > 0:
            means |= zip(self.names, self.sums.double() / PARTS / self.questions, strict=True)
        if 0 < self.other_questions < self.questions:
            names = [f"{name}_without_copies" for name in self.names]
            means |= zip(names, self.other_sums.double() / PARTS / self.other_questions, strict=True)
        return {
            **means,
            **super().compute(),
            "questions": self.questions.double(),
            "questions_without_positive": self.questions_without_positive.double(),
        }


class PairScores(MatchingScores):
    """Accuracy, AUC and loss of pairs that match or do not."""

    correct: Tensor
    others: Tensor
    other_correct: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("correct", "others", "other_correct"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def count(self, score: Tensor, target: Tensor, query: Tensor, other: Tensor) -> None:
        """Count the pairs on the right side of score 0."""
        correct = (score > 0) == (target > 0)
        self.correct += correct.sum()
        self.others += other.sum()
        self.other_correct += (correct & other).sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; `accuracy_without_copies` if some pairs are copies, and not all."""
        scores = {"accuracy": self.correct.double() / self.pairs.clamp(min=1), **super().compute()}
        if 0 < self.others < self.pairs:
            scores["accuracy_without_copies"] = self.other_correct.double() / self.others
        return scores
