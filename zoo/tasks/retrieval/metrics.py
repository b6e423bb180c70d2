"""How well a collection is ranked for queries: exact on any number of processes, neutral to ties.

As in `zoo.tasks.matching.metrics`, a measure of a ranking with ties is its mean over all orders of the tied documents.
But a collection has many more documents than a query has relevant ones, so only the groups of tied documents that hold
a relevant one are looked at. Take such a group of n documents, r of them relevant with grades that add up to G, that
starts after a better documents, of which R are relevant. With H the harmonic numbers:

- DCG@k: G/n times the sum of 1/log2(rank + 1) over the ranks a + 1 .. min(a + n, k);
- recall@k: r (min(a + n, k) - min(a, k)) / n of all relevant;
- average precision: the sum over places j = 1 .. n of r/n (R + 1 + (j-1)(r-1)/(n-1)) / (a + j) over all relevant, where
  the sum of 1/(a + j) is S = H(a + n) - H(a), and that of (j-1)/(a + j) is n - (a + 1) S;
- reciprocal rank: the first group's sum of C(n-j, r-1) / C(n, r) / (a + j).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from zoo.tasks.matching.metrics import PARTS

#: Cut-offs of NDCG, and of recall.
CUTOFFS = (1, 3, 10)
RECALL_AT = 100
NAMES = (*(f"ndcg@{k}" for k in CUTOFFS), "map", "mrr", f"recall@{RECALL_AT}")
#: The measure by which an epoch and a mixture are chosen.
CHOICE = NAMES.index("ndcg@10")


class Judged(NamedTuple):
    """J judgements of B queries; the queries rising."""

    #: int64 [J]: 0..B-1.
    query: Tensor
    #: int64 [J]: 0..D-1; -1 = the document is not ranked, so that it is never found.
    document: Tensor
    #: [J]: above 0 = relevant.
    grade: Tensor


def measure_rankings(score: Tensor, judged: Judged) -> Tensor:
    """Measure rankings, each the mean over all orders of its tied documents.

    Args:
        score: [B, D]; higher is ranked before lower, nan last.
        judged: what is known of the documents; the others have grade 0.

    Returns:
        float64 [B, len(NAMES)]; 0 for a query without a relevant document.
    """
    queries, documents = score.shape
    score = score.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    relevant = judged.grade > 0
    total = torch.bincount(judged.query[relevant], minlength=queries)
    best_grades = judged.query[relevant], judged.grade[relevant].double()
    ranked = relevant & (judged.document >= 0)
    query, grade = judged.query[ranked], judged.grade[ranked].double()
    better, upto = _places(score, query, score[query, judged.document[ranked]])

    # Groups of tied documents that hold relevant ones, query after query, best first.
    keys, group = torch.unique(query * (documents + 1) + better, return_inverse=True)
    of_query, a = keys // (documents + 1), keys % (documents + 1)
    r = torch.bincount(group, minlength=len(keys)).double()
    n = torch.zeros_like(a).index_copy(0, group, upto - better).double()
    gain = r.new_zeros(len(keys)).index_add(0, group, grade)
    seen = r.cumsum(0) - r
    is_first = torch.ones_like(of_query, dtype=torch.bool)
    is_first[1:] = of_query[1:] != of_query[:-1]
    # Relevant documents of the query in better groups.
    first_seen = seen[is_first][is_first.cumsum(0) - 1]
    before = seen - first_seen

    ranks = torch.arange(1, documents + 1, device=score.device, dtype=torch.float64)
    harmonic = torch.cat([ranks.new_zeros(1), (1 / ranks).cumsum(0)])
    end = a + n.long()
    s = harmonic[end] - harmonic[a]
    precision = r / n * ((before + 1) * s + (r - 1) / (n - 1).clamp(min=1) * (n - (a + 1) * s))
    found = [_sums(precision, of_query, queries) / total.clamp(min=1)]
    reciprocal = precision.new_zeros(queries)
    reciprocal[of_query[is_first]] = _first_relevant(a[is_first], n[is_first], r[is_first])
    found.append(reciprocal)
    upto_k = end.clamp(max=RECALL_AT) - a.clamp(max=RECALL_AT)
    found.append(_sums(r * upto_k / n, of_query, queries) / total.clamp(min=1))
    ndcg = []
    for k in CUTOFFS:
        discount = torch.cat([ranks.new_zeros(1), (1 / (ranks[:k] + 1).log2()).cumsum(0)])
        most = len(discount) - 1
        dcg = _sums(
            gain / n * (discount[end.clamp(max=most)] - discount[a.clamp(max=most)]), of_query, queries
        )
        best = _ideal(*best_grades, total, k)
        ndcg.append(torch.where(best > 0, dcg / best, 0.0))
    return torch.stack([*ndcg, *found], dim=1)


def _places(score: Tensor, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """How many documents are better than each of some documents, and how many are not worse: int64 [relevant]."""
    total = torch.bincount(query, minlength=len(score))
    place = torch.arange(len(query), device=query.device) - (total.cumsum(0) - total)[query]
    width = int(total.max()) if len(query) else 0
    values = score.new_zeros(len(total), width).index_put((query, place), value)
    ascending = score.sort(dim=1).values
    documents = score.shape[1]
    not_better = torch.searchsorted(ascending, values.contiguous(), right=True)[query, place]
    worse = torch.searchsorted(ascending, values.contiguous())[query, place]
    return documents - not_better, documents - worse


def _first_relevant(a: Tensor, n: Tensor, r: Tensor) -> Tensor:
    """Mean of one over the rank of a group's first relevant document: float64 [groups]."""
    found = 1 / (a + 1).double()
    for i in ((n > 1) & (r < n)).nonzero()[:, 0].tolist():
        j = torch.arange(1, int(n[i] - r[i]) + 2, device=a.device, dtype=torch.float64)
        share = (_log_choose(n[i] - j, r[i] - 1) - _log_choose(n[i], r[i])).exp()
        found[i] = (share / (a[i] + j)).sum()
    return found


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    return (n + 1).lgamma() - (k + 1).lgamma() - (n - k + 1).lgamma()


def _ideal(query: Tensor, grade: Tensor, total: Tensor, k: int) -> Tensor:
    """DCG@k of the best order [B]."""
    order = grade.argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]
    rank = torch.arange(len(order), device=order.device) - (total.cumsum(0) - total)[query[order]]
    gains = (grade[order] / (rank + 2).double().log2()).where(rank < k, 0.0)
    return _sums(gains, query[order], len(total))


def _sums(value: Tensor, group: Tensor, number: int) -> Tensor:
    return value.new_zeros(number).index_add(0, group, value)


class RetrievalScores(Metric):
    """NDCG@k, MAP, MRR and recall of rankings, for one or several ways to mix two scores.

    Queries without a relevant document can't be ranked well or badly: they are left out and counted.
    """

    full_state_update = False
    sums: Tensor
    other_sums: Tensor
    queries: Tensor
    other_queries: Tensor
    without: Tensor
    empty: Tensor
    loss: Tensor
    rows: list[Tensor]
    values: list[Tensor]

    def __init__(self, mixtures: int = 1) -> None:
        """Make room.

        Args:
            mixtures: how many rankings are measured; the one of the highest NDCG@10 is told.
        """
        super().__init__()
        for name in ("sums", "other_sums"):
            zeros = torch.zeros(mixtures, len(NAMES), dtype=torch.long)
            self.add_state(name, zeros, dist_reduce_fx="sum")
        for name in ("queries", "other_queries", "without", "empty", "loss"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_state("values", [], dist_reduce_fx="cat")
        self.best = 0
        #: of the last `compute`: row number of a query -> its NDCG@10.
        self.by_query: dict[int, float] = {}

    def update(
        self,
        scores: list[Tensor],
        judged: Judged,
        row: Tensor,
        weight: Tensor,
        loss: Tensor,
        is_empty: Tensor,
        is_copy: Tensor | None = None,
    ) -> None:
        """Count a batch of B queries.

        Args:
            scores: of each mixture [B, D].
            judged: of the batch.
            row: int64 [B], numbers of the queries.
            weight: [B], 0 for queries that only pad a batch.
            loss: [B].
            is_empty: bool [B], queries without a word.
            is_copy: bool [B], queries that scores without copies leave out; None = none.
        """
        relevant = torch.bincount(judged.query[judged.grade > 0], minlength=len(row)) > 0
        counted = (weight > 0) & relevant
        other = counted if is_copy is None else counted & ~is_copy
        values = torch.stack([measure_rankings(score, judged) for score in scores])  # [mixtures, B, names]
        parts = (values * PARTS).round().long()
        self.sums += parts[:, counted].sum(dim=1)
        self.other_sums += parts[:, other].sum(dim=1)
        self.queries += counted.sum()
        self.other_queries += other.sum()
        self.without += ((weight > 0) & ~relevant).sum()
        self.empty += ((weight > 0) & is_empty).sum()
        self.loss += (loss[counted].double() * PARTS).round().long().sum()
        self.rows.append(row[counted])
        self.values.append(values[:, counted, CHOICE].T)  # [queries, mixtures]

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; `queries` are those that the means are over. Without one, there are no means.

        Means without copies are there if some of these queries are copies, and not all.
        """
        counts = {
            "queries": self.queries.double(),
            "queries_without_relevant": self.without.double(),
            "empty_queries": self.empty.double(),
        }
        if self.queries == 0:
            return counts
        self.best = int(self.sums[:, CHOICE].argmax())
        rows, values = _joined(self.rows), _joined(self.values)
        self.by_query = dict(zip(rows.tolist(), values[:, self.best].tolist(), strict=True))
        means = self.sums[self.best].double() / PARTS / self.queries
        found = dict(zip(NAMES, means, strict=True))
        if 0 < self.other_queries < self.queries:
            others = self.other_sums[self.best].double() / PARTS / self.other_queries
            found |= {f"{name}_without_copies": value for name, value in zip(NAMES, others, strict=True)}
        return {**found, "loss": self.loss.double() / PARTS / self.queries, **counts}


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    # Gathered from several processes, it is one tensor already.
    return state if isinstance(state, Tensor) else torch.cat(state)
