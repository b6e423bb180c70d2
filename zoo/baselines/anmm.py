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
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from datamodules.batch import MatchingBatch, MatchingSpec
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, word_pair_mask
from zoo.tasks.base import check_sizes
from zoo.tasks.ranking import Loss, MatchingOutput, MatchingTask

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

    def __init__(
        self,
        words: WordEncoder,
        num_bins: int,
        num_weights: int,
        dropout: float,
        num_outputs: int,
        bias: bool,
        unknown: int,
    ) -> None:
        super().__init__()
        self.words = words
        self.unknown = unknown
        self.num_bins = num_bins
        self.weight = nn.Linear(num_bins + 1, num_weights, bias=False)  # w_kt
        # aNMM-2 has several sets of weights and combines what they find.
        self.combine = nn.Linear(num_weights, 1, bias=False) if num_weights > 1 else None  # r_t
        self.gate = nn.Parameter(torch.zeros(words.size))  # v; at zero, all words count alike
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(1, num_outputs, bias=bias)

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


class ANMM(MatchingTask):
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
        word_size: int = 300,
        train_word_vectors: bool = False,
        dropout: float = 0.0,
        init_from: str | None = None,
        loss: Loss = "hinge",
        margin: float = 1.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=2e-2, fused=True),
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            num_bins: ranges that cosines from -1 to 1 are parted into, beside the one of exact matches.
            num_weights: sets of value-shared weights: 1 is aNMM-1, more is aNMM-2.
            word_size: size of word vectors, where the data brings none (`--data.word_vectors`).
            train_word_vectors: train the word vectors. Vectors that are not pre-trained are always trained.
            dropout: on the sums by value; the paper has none.
            init_from: a checkpoint whose weights the model starts from. `--ckpt_path` resumes a run instead.
            loss: see `MatchingTask`; the paper's is `hinge`.
            margin: of the hinge loss.
            optimizer: makes the optimizer. Adam's `fused=True` does the same in one pass: with a trained table
                the update is most of a step on a CPU.
            lr_scheduler: makes a schedule, stepped once an epoch.
        """
        super().__init__(optimizer, lr_scheduler, loss, margin)
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        check_sizes(self.hparams, "num_bins", "num_weights")

    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> ANMMNetwork:
        """The paper's network for the data's sizes; see `Task.build_network`."""
        options = self.hparams
        words = WordEncoder.of_vocabulary(
            spec.num_words, word_vectors, options["word_size"], options["train_word_vectors"]
        )
        return ANMMNetwork(
            words,
            options["num_bins"],
            options["num_weights"],
            options["dropout"],
            spec.num_outputs,
            bias=self.sees_constants,
            unknown=spec.unknown,
        )
