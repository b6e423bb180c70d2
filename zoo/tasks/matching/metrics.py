"""Metrics of ranked candidates, and of pairs to classify."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules.batch import MatchingBatch
from zoo.tasks.metrics import PARTS, RowMeans, joined
from zoo.tasks.ranking_measures import Judged, measure_rankings

#: Measures of the ranking of a question's candidates.
NAMES = ("map", "mrr", "ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10", "p@1")


def measure_lists(score: Tensor, target: Tensor, query: Tensor) -> Tensor:
    """Measure rankings of lists 0..B-1, `query` [P]: float64 [B, len(NAMES)], 0 without a relevant candidate."""
    order = query.argsort(stable=True)
    query, score, target = query[order], score[order].float(), target[order]
    size = torch.bincount(query)
    column = torch.arange(len(query), device=query.device) - (size.cumsum(0) - size)[query]
    shape = (len(size), int(size.max()) if len(size) else 0)
    # Padding ranks behind all candidates.
    lowest = torch.finfo(score.dtype).min
    score = score.nan_to_num(nan=lowest, posinf=torch.inf, neginf=lowest)
    lists = torch.full(shape, -torch.inf, device=score.device).index_put((query, column), score)
    return measure_rankings(lists, Judged(query, column, target), NAMES)


def area_under_curve(score: Tensor, target: Tensor) -> float | None:
    """Probability that a score [P] of a target above 0 exceeds one of the others, ties half; None without either."""
    from sklearn.metrics import roc_auc_score  # slow to import, and of no use to other tasks

    is_positive = (target > 0).numpy()
    if is_positive.all() or not is_positive.any():
        return None
    lowest = torch.finfo(torch.float32).min
    return float(roc_auc_score(is_positive, score.float().nan_to_num(nan=lowest).numpy()))


class MatchingScores(RowMeans):
    """Measures of the rankings of questions' candidates (`NAMES`), or the accuracy of single pairs; loss and AUC.

    The means exclude questions without a relevant candidate. For the AUC, the scores are gathered from all processes.
    """

    pairs: Tensor
    graded: Tensor
    questions_without_positive: Tensor
    score: list[Tensor]
    target: list[Tensor]

    def __init__(self, goal: str) -> None:
        """Count pairs of this goal, see `MatchingSpec`."""
        is_ranking = goal == "ranking"
        super().__init__(*((NAMES, PARTS) if is_ranking else (("accuracy",), 1)))
        self.is_ranking = is_ranking
        self.add_counts(pairs=(), graded=(), questions_without_positive=())
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, score: Tensor, loss: Tensor, batch: MatchingBatch) -> None:
        """Count P pairs, whole lists, with terms [n] of the loss; nan grades are unknown, weights of 0 pad."""
        counted = (batch.weight > 0) & ~batch.target.isnan()
        score, target = score[counted].detach().float(), batch.target[counted].float()
        query, is_duplicate = batch.query[counted], batch.is_duplicate
        is_duplicate = None if is_duplicate is None else is_duplicate[counted]
        self.add_loss(loss)
        self.pairs += len(score)
        self.graded += ((target != 0) & (target != 1)).sum()
        self.score.append(score)
        self.target.append(target)
        if not self.is_ranking:
            is_correct = (score > 0) == (target > 0)
            self.add_rows(is_correct.unsqueeze(1), torch.ones_like(is_correct), is_duplicate)
            return
        questions, query = torch.unique(query, return_inverse=True)
        has_positive = torch.zeros_like(questions, dtype=torch.bool)
        has_positive[query[target > 0]] = True
        if is_duplicate is not None:
            is_duplicate = torch.zeros_like(has_positive).index_put((query,), is_duplicate)
        self.add_rows(measure_lists(score, target, query), has_positive, is_duplicate)
        self.questions_without_positive += (~has_positive).sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; AUC if there are pairs of two grades. Without a counted row, there are no means."""
        scores = self.means() if self.rows > 0 else {}
        scores["loss"] = self.mean_loss
        if self.graded == 0 and self.pairs > 0:
            area = area_under_curve(joined(self.score), joined(self.target))
            if area is not None:
                scores["auc"] = self.loss_sum.new_tensor(area)
        scores["pairs"] = self.pairs.double()
        if self.is_ranking:
            scores["questions"] = self.rows.double()
            scores["questions_without_positive"] = self.questions_without_positive.double()
        return scores
