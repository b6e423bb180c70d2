"""Attention-based neural matching with weights shared by value.

Liu Yang, Qingyao Ai, Jiafeng Guo, W. Bruce Croft: "aNMM: Ranking Short Answer Texts with Attention-Based Neural
Matching Model", CIKM 2016.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.lightning import OptimizerCallable
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, word_pair_mask
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput

#: Cosines from here on are matches of equal words, which have a range of their own.
EXACT = 1 - 1e-5


def sum_by_value(cosine: Tensor, mask: Tensor, num_bins: int) -> Tensor:
    """Sums x_jk of word j's cosines in range k, [P, T, num_bins + 1] of [P, T, S]; the last range is exact matches."""
    bins = ((cosine + 1) / 2 * num_bins).long().clamp(0, num_bins - 1)
    bins = bins.masked_fill(cosine >= EXACT, num_bins)
    sums = cosine.new_zeros(*cosine.shape[:2], num_bins + 1)
    return sums.scatter_add(2, bins, cosine * mask)


class ANMMNetwork(nn.Module):
    """Figures 2 and 3: sums by value, weights shared by value, a gate over the question's words."""

    def __init__(self, words: WordEncoder, spec: MatchingSpec, bins: int, bias: bool) -> None:
        super().__init__()
        self.words, self.unknown, self.num_bins = words, spec.unknown, bins
        self.weight = nn.Linear(bins + 1, 1, bias=False)  # w_k
        self.gate = nn.Parameter(torch.zeros(words.size))  # v; at zero, all words count equally
        self.out = nn.Linear(1, spec.num_outputs, bias=bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.words(batch.word, batch.char)  # [U, D]
        first, second = vectors[batch.first_text], vectors[batch.second_text]
        mask = word_pair_mask(batch, self.unknown)
        cosine = cosine_interaction(first, second, batch) * mask  # [P, T, S]
        with torch.autocast(vectors.device.type, enabled=False):
            sums = sum_by_value(cosine, mask, self.num_bins)
            matches = torch.sigmoid(self.weight(sums))  # [P, T, 1]
            # The gate depends on the question alone: computed once per text, not once per pair.
            energy = first.float() @ self.gate.float()  # [N, T]
            is_word = batch.first_text != 0
            gate = energy.masked_fill(~is_word, torch.finfo(energy.dtype).min).softmax(dim=1) * is_word
            score = (gate[batch.first] * matches.squeeze(2)).sum(dim=1, keepdim=True)  # [P, 1]
            return MatchingOutput(self.out(score), cosine.detach())


class ANMM(ReadsWordVectors, MatchingTask):
    """The paper's aNMM-1; its loss is `hinge`."""

    def __init__(
        self,
        num_bins: int = 20,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=2e-2, fused=True),
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            num_bins: ranges that divide cosines from -1 to 1; exact matches have one more.
            optimizer: makes the optimizer; so few weights need a high rate.
        """
        super().__init__(optimizer=optimizer, **shared)
        check_sizes(num_bins=num_bins)
        self.num_bins = num_bins

    @override
    def build_network(self, given: Given[MatchingSpec]) -> ANMMNetwork:
        return ANMMNetwork(self.make_words(given), given.spec, self.num_bins, self.has_bias(given.spec))
