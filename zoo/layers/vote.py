"""A vote of labelled memories: what any model with memories can mix into its predictions without training.

Each memory votes for its own class with a share that depends on its similarity to the text and on the retriever's
score. How much the vote counts and how sharp it is is fitted on labelled rows (`zoo.memory.tuning`), in seconds and
again whenever the memory has grown.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from datamodules.batch import ClassificationBatch


def vote(
    similarity: Tensor, score: Tensor, mask: Tensor, tau: Tensor | float, score_power: float = 3.0
) -> Tensor:
    """Memories' shares of a vote: softmax_k(tau s_k + p log(score_k / score_1)).

    Args:
        similarity: float32 [B, K].
        score: float32 [B, K] retrieval scores.
        mask: bool [B, K], True where there is a memory.
        tau: sharpness.
        score_power: p.

    Returns:
        float32 [B, K]; a text without memories has shares of 0.
    """
    if similarity.shape[1] == 0:
        return similarity
    energy = similarity * tau + beside_best(score) * score_power
    return energy.masked_fill(~mask, torch.finfo(energy.dtype).min).softmax(dim=1) * mask


def beside_best(score: Tensor) -> Tensor:
    """Log of retrieval scores [B, K] over the best one of each text, K > 0."""
    top = score.amax(dim=1, keepdim=True).clamp(min=1e-6)
    # A score of 0 (LMDirichlet has such hits) is a weak memory, not an impossible one.
    return (score / top).clamp(min=1e-3).log()


def count_votes(shares: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Shares [B, K] added up by the memories' classes `target` [B, K] (negative: none): [B, C]."""
    votes = shares.new_zeros(len(shares), num_classes)
    return votes.scatter_add_(1, target.clamp(min=0), shares * (target >= 0))


def mix_in(logits: Tensor, votes: Tensor, mix: Tensor | float) -> Tensor:
    """Log of (1 - mix) softmax(logits) + mix votes, for logits and votes [B, C].

    A text whose memories cast no vote keeps its own distribution.
    """
    total = votes.sum(dim=1, keepdim=True)
    own = logits.softmax(dim=1)
    mixed = (1 - mix) * own + mix * torch.where(total > 0, votes / total.clamp(min=1e-6), own)
    return mixed.clamp(min=1e-9).log()


class Evidence(NamedTuple):
    """What a model and its memories say of n labelled texts, before the two are mixed.

    It costs a pass through the network; what any mix and sharpness make of it then costs nothing.
    """

    #: the classifier's [n, C].
    logits: Tensor
    #: cosine, retrieval score, mask and class of the memories [n, K].
    similarity: Tensor
    score: Tensor
    mask: Tensor
    memory_target: Tensor
    #: classes [n].
    target: Tensor

    def log_probabilities(self, mix: Tensor | float, tau: Tensor | float) -> Tensor:
        """Log of what the model predicts [n, C]."""
        shares = vote(self.similarity, self.score, self.mask, tau)
        return mix_in(self.logits, count_votes(shares, self.memory_target, self.logits.shape[1]), mix)


class VotingNetwork(nn.Module):
    """Base of the networks whose predictions a vote of the memories can join."""

    def __init__(self, mix: float, tau: float = 10.0) -> None:
        """Choose how much the vote counts at first.

        Args:
            mix: its share, 0..1; 0 = no vote.
            tau: its sharpness.
        """
        super().__init__()
        # Fitted on labelled rows, not by gradients.
        self.mix: Tensor
        self.mix_tau: Tensor
        self.register_buffer("mix", torch.tensor(mix))
        self.register_buffer("mix_tau", torch.tensor(tau))

    def evidence(self, batch: ClassificationBatch) -> Evidence:
        """What the classifier and the memories say of a batch, before they are mixed."""
        raise NotImplementedError

    def set_vote(self, mix: float, tau: float) -> None:
        """Take a share and a sharpness that were fitted."""
        self.mix.fill_(mix)
        self.mix_tau.fill_(tau)
