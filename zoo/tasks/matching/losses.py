"""Losses of pairs in lists: functions that return the terms whose mean is the loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from datamodules.batch import MatchingBatch


def hinge_terms(score: Tensor, batch: MatchingBatch, margin: float) -> Tensor:
    """Hinge of each list of two or more grades: the mean of max(0, margin - better + worse) over its candidates."""
    scores, grades, mask = _dense(score, batch)
    better = (grades[:, :, None] > grades[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    missing = functional.relu(margin - scores[:, :, None] + scores[:, None, :]) * better
    combinations = better.sum(dim=(1, 2))
    counted = _rows(combinations > 0)
    return missing.sum(dim=(1, 2))[counted] / combinations[counted]


def softmax_terms(score: Tensor, batch: MatchingBatch) -> Tensor:
    """Cross entropy of each list with a positive: of its candidates' softmax, against its normalized grades."""
    scores, grades, mask = _dense(score, batch)
    total = grades.sum(dim=1)
    counted = _rows(total > 0)
    log_probability = scores.masked_fill(~mask, -torch.inf)[counted].log_softmax(dim=1)
    # 0 times minus infinity, where there is no candidate, must be 0.
    log_probability = log_probability.masked_fill(~mask[counted], 0.0)
    return -(grades[counted] / total[counted, None] * log_probability).sum(dim=1)


def cross_entropy_terms(logits: Tensor, batch: MatchingBatch) -> Tensor:
    """Cross entropy of each pair; a single logit is that of a match, and grades above 0 are matches."""
    counted = _rows(_counted(batch))
    target = batch.target[counted] > 0
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(
            logits[counted, 0], target.to(logits.dtype), reduction="none"
        )
    return functional.cross_entropy(logits[counted], target.long(), reduction="none")


def _rows(mask: Tensor) -> Tensor:
    """Row numbers of a mask: indexing by a mask would synchronize the GPU each time, also for the gradient."""
    return mask.nonzero().squeeze(1)


def _counted(batch: MatchingBatch) -> Tensor:
    return (batch.weight > 0) & ~batch.target.isnan()


def _dense(score: Tensor, batch: MatchingBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, grades and mask of candidates as lists [B, C]; 0 where there is none."""
    shape = (0, 0)
    if len(score):
        last_list, last_place = torch.stack([batch.query.max(), batch.place.max()]).tolist()
        shape = (last_list + 1, last_place + 1)
    index = (batch.query, batch.place)
    mask = torch.zeros(shape, dtype=torch.bool, device=score.device).index_put(index, _counted(batch))
    scores = score.new_zeros(shape).index_put(index, score)
    grades = score.new_zeros(shape).index_put(index, batch.target.to(score.dtype)).masked_fill(~mask, 0.0)
    return scores, grades, mask
