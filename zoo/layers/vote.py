"""Attention without padding, and votes of labelled memories, weighted by similarity and retrieval score."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(energy: Tensor, mask: Tensor) -> Tensor:
    """Softmax of each row of energies [B, K] where the mask, bool [B, K], is True; 0 elsewhere."""
    return energy.masked_fill(~mask, torch.finfo(energy.dtype).min).softmax(dim=1) * mask


def vote(
    similarity: Tensor, score: Tensor, mask: Tensor, tau: Tensor | float, score_power: float = 3.0
) -> Tensor:
    """The memories' shares of a vote, float32 [B, K]: softmax_k(tau s_k + p log(score_k / score_1)).

    Similarities s and retrieval scores are [B, K]; shares are 0 where the mask, bool [B, K], is False.
    """
    if similarity.shape[1] == 0:
        return similarity
    return masked_softmax(similarity * tau + relative_scores(score) * score_power, mask)


def relative_scores(score: Tensor) -> Tensor:
    """Log of retrieval scores [B, K] divided by the best score of each text, K > 0."""
    top = score.amax(dim=1, keepdim=True).clamp(min=1e-6)
    # A score of 0 (LMDirichlet has such hits) is a weak memory, not an impossible one.
    return (score / top).clamp(min=1e-3).log()


def count_votes(shares: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Sum shares [B, K] by the memories' classes `target` [B, K], or labels [B, K, L] (negative: none): [B, C]."""
    votes = shares.new_zeros(len(shares), num_classes)
    if target.ndim > shares.ndim:
        shares = shares[:, :, None].expand(target.shape).flatten(1)
        target = target.flatten(1)
    return votes.scatter_add_(1, target.clamp(min=0), shares * (target >= 0))
