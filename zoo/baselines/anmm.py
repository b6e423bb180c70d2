"""Attention-based neural matching with weights shared by strength.

Liu Yang, Qingyao Ai, Jiafeng Guo, W. Bruce Croft: "aNMM: Ranking Short Answer Texts with Attention-Based
Neural Matching Model", CIKM 2016.

A word of the question meets every word of the answer; what these cosines weigh depends on their values and
not on their places: each range of values has a weight. So a word's matches are added up by range and weighed,
and the question's words are added up with a softmax gate that says which of them matter.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, word_pair_mask
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import WordVectors
from zoo.tasks.matching.task import MatchingOutput, MatchingTask

#: Cosines from here on are a match of equal words, which has a range of its own.
EXACT = 1 - 1e-5


def add_up_by_value(cosine: Tensor, mask: Tensor, num_bins: int) -> Tensor:
    """Sums of the cosines in each range of values.

    Args:
        cosine: float32 [P, T, S], in -1..1.
        mask: bool [P, T, S], True where both places hold a word.
        num_bins: ranges that -1..1 is parted into; the last of the result is that of exact matches.

    Returns:
        float32 [P, T, num_bins + 1]: x_jk, the sum of word j's cosines in range k.
    """
    bins = ((cosine + 1) / 2 * num_bins).long().clamp(0, num_bins - 1)
    bins = bins.masked_fill(cosine >= EXACT, num_bins)
    sums = cosine.new_zeros(*cosine.shape[:2], num_bins + 1)
    return sums.scatter_add(2, bins, cosine * mask)


class ANMMNetwork(nn.Module):
    """Figures 2 and 3: sums by value, weights shared by value, a gate over the question's words."""

    def __init__(self, words: WordEncoder, options: Any, spec: MatchingSpec, bias: bool) -> None:
        """Make the parts.

        Args:
            words: vectors of words.
            options: of `ANMM`.
            spec: of the data.
            bias: give the last layer a bias.
        """
        super().__init__()
        self.words = words
        self.unknown = spec.unknown
        self.num_bins = options.num_bins
        num_weights = options.num_weights
        self.weight = nn.Linear(self.num_bins + 1, num_weights, bias=False)  # w_kt
        # aNMM-2 has several sets of weights and combines what they find.
        self.combine = nn.Linear(num_weights, 1, bias=False) if num_weights > 1 else None  # r_t
        self.gate = nn.Parameter(torch.zeros(words.size))  # v; at zero, all words count alike
        self.dropout = nn.Dropout(options.dropout)
        self.out = nn.Linear(1, spec.num_outputs, bias=bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        vectors = self.words(batch.word, batch.char)  # [U, D]
        first, second = vectors[batch.first_text], vectors[batch.second_text]
        mask = word_pair_mask(batch, self.unknown)
        cosine = cosine_interaction(first, second, batch) * mask  # [P, T, S]
        with torch.autocast(vectors.device.type, enabled=False):
            sums = add_up_by_value(cosine, mask, self.num_bins)
            found = torch.sigmoid(self.weight(self.dropout(sums)))  # [P, T, num_weights]
            if self.combine is not None:
                found = torch.sigmoid(self.combine(found))
            # The gate reads the question alone: once a text, in however many pairs it is.
            energy = first.float() @ self.gate.float()  # [N, T]
            real = batch.first_text != 0
            gate = energy.masked_fill(~real, torch.finfo(energy.dtype).min).softmax(dim=1) * real
            score = (gate[batch.first] * found.squeeze(2)).sum(dim=1, keepdim=True)  # [P, 1]
            return MatchingOutput(self.out(score), cosine.detach())


class ANMM(WordVectors, MatchingTask):
    """The paper's aNMM-1, and with `num_weights` above 1 its aNMM-2.

    Example:
        >>> model = ANMM(num_bins=20)
    """

    paper = (
        "Yang, Ai, Guo, Croft: aNMM: Ranking Short Answer Texts with Attention-Based Neural Matching (2016)"
    )

    def __init__(
        self,
        num_bins: int = 20,
        num_weights: int = 1,
        dropout: float = 0.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=2e-2, fused=True),
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            num_bins: ranges that cosines from -1 to 1 are parted into, beside the one of exact matches.
            num_weights: sets of value-shared weights: 1 is aNMM-1, more is aNMM-2.
            dropout: on the sums by value; the paper has none.
            optimizer: makes the optimizer; so few weights take a high rate.
            **shared: options of `WordVectors`, `MatchingTask` (the paper's loss is `hinge`) and `Task`.
        """
        super().__init__(optimizer=optimizer, **shared)
        check_sizes(self.options, "num_bins", "num_weights")

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> ANMMNetwork:
        return ANMMNetwork(self.make_words(spec, word_vectors), self.options, spec, self.sees_constants(spec))
