"""Measures of rankings that are neutral to ties.

Documents of equal score have no order, so a measure of a ranking with ties is its mean over all orders of the tied
documents: neither the order of a file nor the implementation of a sort changes it. Only groups of tied documents with a
relevant one contribute. Take such a group of n documents, r of them relevant with grades that add up to G, after a
documents with higher scores, R of them relevant. With H the harmonic numbers:

- DCG@k: G/n times the sum of 1/log2(rank + 1) over the ranks a + 1 .. min(a + n, k);
- relevant documents up to rank k: r (min(a + n, k) - min(a, k)) / n;
- average precision: the sum over j = 1 .. n of r/n (R + 1 + (j-1)(r-1)/(n-1)) / (a + j), over all relevant documents:
  a document at rank a + j is relevant with probability r/n, and each of the j-1 before it in the group then with
  (r-1)/(n-1). The sum of 1/(a + j) is S = H(a + n) - H(a), and that of (j-1)/(a + j) is n - (a + 1) S;
- reciprocal rank: the sum over j of C(n-j, r-1) / C(n, r) / (a + j) in the first group.

Source: McSherry and Najork, "Computing information retrieval performance measures efficiently in the presence of tied
scores", ECIR 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Judged(NamedTuple):
    """J judgements of B queries, in ascending order of the queries."""

    #: int64 [J]: 0..B-1.
    query: Tensor
    #: int64 [J]: 0..D-1; -1 = a document that is not ranked.
    document: Tensor
    #: [J]: above 0 = relevant.
    grade: Tensor


def measure_rankings(score: Tensor, judged: Judged, names: Sequence[str]) -> Tensor:
    """Measure rankings by score [B, D], nan last: float64 [B, len(names)], 0 without a relevant document."""
    rankings = _TiedRankings(score, judged)
    return torch.stack([rankings.measure(name) for name in names], dim=1)


class _TiedRankings:
    """The groups of tied documents with a relevant one, query after query, best first; all fields are [groups]."""

    def __init__(self, score: Tensor, judged: Judged) -> None:
        score = score.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        self.queries, self.documents = score.shape
        is_relevant = judged.grade > 0
        self.relevant_query, self.grade = judged.query[is_relevant], judged.grade[is_relevant].double()
        self.total = torch.bincount(self.relevant_query, minlength=self.queries)
        is_ranked = is_relevant & (judged.document >= 0)
        query, grade = judged.query[is_ranked], judged.grade[is_ranked].double()
        better, upto = _count_better(score, query, score[query, judged.document[is_ranked]])
        keys, group = torch.unique(query * (self.documents + 1) + better, return_inverse=True)
        self.query = keys // (self.documents + 1)
        self.a = keys % (self.documents + 1)
        self.end = torch.zeros_like(self.a).index_copy(0, group, upto)  # a + n
        self.n = (self.end - self.a).double()
        self.r = torch.bincount(group, minlength=len(keys)).double()
        self.gain = self.r.new_zeros(len(keys)).index_add(0, group, grade)
        self.is_first = torch.ones_like(self.query, dtype=torch.bool)
        self.is_first[1:] = self.query[1:] != self.query[:-1]

    def measure(self, name: str) -> Tensor:
        """One measure of each query: float64 [B]."""
        kind, _, k = name.partition("@")
        if kind == "map":
            return self._sums(self._precision()) / self.total.clamp(min=1)
        if kind == "mrr":
            return self._sums(self._reciprocal_rank().where(self.is_first, 0.0))
        if kind == "ndcg":
            return self._ndcg(int(k))
        hits = self._sums(self.r * (self.end.clamp(max=int(k)) - self.a.clamp(max=int(k))) / self.n)
        return hits if name == "p@1" else hits / self.total.clamp(min=1)

    def _sums(self, value: Tensor) -> Tensor:
        """Sums of values [groups] by query [B]."""
        return value.new_zeros(self.queries).index_add(0, self.query, value)

    def _precision(self) -> Tensor:
        """The sum of the precisions at the group's relevant documents."""
        seen = self.r.cumsum(0) - self.r
        before = seen - seen[self.is_first][self.is_first.cumsum(0) - 1]  # R
        ranks = torch.arange(1, self.documents + 1, device=seen.device, dtype=torch.float64)
        harmonic = torch.cat([ranks.new_zeros(1), (1 / ranks).cumsum(0)])
        s = harmonic[self.end] - harmonic[self.a]
        rest = (self.r - 1) / (self.n - 1).clamp(min=1) * (self.n - (self.a + 1) * s)
        return self.r / self.n * ((before + 1) * s + rest)

    def _reciprocal_rank(self) -> Tensor:
        """One over the rank of the group's first relevant document."""
        a, n, r = self.a, self.n, self.r
        reciprocal: Tensor = 1 / (a + 1).double()
        for i in (self.is_first & (n > 1) & (r < n)).nonzero()[:, 0].tolist():
            j = torch.arange(1, int(n[i] - r[i]) + 2, device=a.device, dtype=torch.float64)
            share = (_log_choose(n[i] - j, r[i] - 1) - _log_choose(n[i], r[i])).exp()
            reciprocal[i] = (share / (a[i] + j)).sum()
        return reciprocal

    def _ndcg(self, k: int) -> Tensor:
        """DCG@k over that of the best order."""
        most = min(k, self.documents)
        ranks = torch.arange(1, most + 1, device=self.gain.device, dtype=torch.float64)
        discount = torch.cat([ranks.new_zeros(1), (1 / (ranks + 1).log2()).cumsum(0)])
        discounts = discount[self.end.clamp(max=most)] - discount[self.a.clamp(max=most)]
        dcg = self._sums(self.gain / self.n * discounts)
        order = self.grade.argsort(descending=True, stable=True)
        order = order[self.relevant_query[order].argsort(stable=True)]
        query = self.relevant_query[order]
        rank = torch.arange(len(order), device=order.device) - (self.total.cumsum(0) - self.total)[query]
        gains = (self.grade[order] / (rank + 2).double().log2()).where(rank < k, 0.0)
        best = dcg.new_zeros(self.queries).index_add(0, query, gains)
        return torch.where(best > 0, dcg / best, 0.0)


def _count_better(score: Tensor, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of documents with scores above, and not below, some values of some queries: int64 [J] each."""
    total = torch.bincount(query, minlength=len(score))
    column = torch.arange(len(query), device=query.device) - (total.cumsum(0) - total)[query]
    width = int(total.max()) if len(query) else 0
    values = score.new_zeros(len(total), width).index_put((query, column), value)
    ascending = score.sort(dim=1).values
    documents = score.shape[1]
    not_better = torch.searchsorted(ascending, values, right=True)[query, column]
    worse = torch.searchsorted(ascending, values)[query, column]
    return documents - not_better, documents - worse


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()
