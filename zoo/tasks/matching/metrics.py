"""Metrics of ranked candidates, and of pairs to classify."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules.batch import MatchingBatch
from zoo.tasks.metrics import PARTS, RowMeans, joined
from zoo.tasks.ranking_measures import Judged, measure_rankings

#: Measures of the ranking of a question's candidates.
NAMES = ("map", "mrr", "ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10", "p@1")


def counted_pairs(batch: MatchingBatch) -> Tensor:
    """bool [P]: the pairs with a known grade; none of weight 0, which pad."""
    return (batch.weight > 0) & ~batch.target.isnan()


def as_lists(score: Tensor, batch: MatchingBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, grades and mask of the counted candidates as lists [B, C]; 0 where there is none."""
    shape = (0, 0)
    if len(score):
        last_list, last_place = torch.stack([batch.query.max(), batch.place.max()]).tolist()
        shape = (last_list + 1, last_place + 1)
    index = (batch.query, batch.place)
    mask = torch.zeros(shape, dtype=torch.bool, device=score.device).index_put(index, counted_pairs(batch))
    scores = score.new_zeros(shape).index_put(index, score)
    grades = score.new_zeros(shape).index_put(index, batch.target.to(score.dtype)).masked_fill(~mask, 0.0)
    return scores, grades, mask


def measure_lists(score: Tensor, batch: MatchingBatch) -> Tensor:
    """Measure the rankings of a batch's lists: float64 [B, len(NAMES)], 0 without a relevant candidate."""
    scores, grades, mask = as_lists(score.float(), batch)
    # Padding ranks behind all candidates.
    lowest = torch.finfo(scores.dtype).min
    scores = scores.nan_to_num(nan=lowest, posinf=torch.inf, neginf=lowest).masked_fill(~mask, -torch.inf)
    query, place = mask.nonzero(as_tuple=True)
    return measure_rankings(scores, Judged(query, place, grades[mask]), NAMES)


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
        counted, is_duplicate = counted_pairs(batch), batch.is_duplicate
        target = batch.target[counted].float()
        self.add_loss(loss)
        self.pairs += len(target)
        self.graded += ((target != 0) & (target != 1)).sum()
        self.score.append(score[counted].detach().float())
        self.target.append(target)
        if not self.is_ranking:
            is_correct = (score > 0) == (batch.target > 0)
            self.add_rows(is_correct.unsqueeze(1), counted, is_duplicate)
            return
        measures = measure_lists(score, batch)
        is_list, has_positive, has_duplicate = torch.zeros(
            3, len(measures), dtype=torch.bool, device=score.device
        )
        is_list[batch.query[counted]] = True
        has_positive[batch.query[counted & (batch.target > 0)]] = True
        if is_duplicate is not None:
            has_duplicate[batch.query[counted]] = is_duplicate[counted]
        self.add_rows(measures, has_positive, has_duplicate)
        self.questions_without_positive += (is_list & ~has_positive).sum()

    def compute(self) -> dict[str, Tensor]:
        """Metric name -> value; AUC if there are pairs of two grades. Without a counted row, there are no means."""
        scores = self.means() if self.rows > 0 else {}
        scores["loss"] = self.mean_loss
        score, is_positive = joined(self.score), joined(self.target) > 0
        if self.graded == 0 and is_positive.any() and not is_positive.all():
            from sklearn.metrics import roc_auc_score  # slow to import, and of no use to other tasks

            # The probability that the score of a positive exceeds one of the others, ties half.
            score = score.nan_to_num(nan=torch.finfo(torch.float32).min)
            scores["auc"] = self.loss_sum.new_tensor(roc_auc_score(is_positive.numpy(), score.numpy()))
        scores["pairs"] = self.pairs.double()
        if self.is_ranking:
            scores["questions"] = self.rows.double()
            scores["questions_without_positive"] = self.questions_without_positive.double()
        return scores
