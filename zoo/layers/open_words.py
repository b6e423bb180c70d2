"""Word vectors; those of words outside of the vocabulary are drawn from their spelling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import DialogueBatch

#: Standard deviation of the initial vectors, and of those of unknown words.
DEVIATION = 0.1


class OpenWords(nn.Module):
    """Vectors of known and unknown words in several tables side by side.

    A word that the vocabulary lacks has in each table a vector of N(0, 0.1^2), drawn from its spelling, times a learned
    scale of the table. In training, word dropout draws such vectors for some known words, too, mostly rare ones
    (probability strength / (strength + training dialogues with the word)), so that the model learns to read them.
    """

    def __init__(self, num_words: int, size: int, tables: int, dropout: float) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.table = nn.Parameter(DEVIATION * torch.randn(num_words, tables * size))
        self.scale = nn.Parameter(torch.ones(tables))

    def forward(self, batch: DialogueBatch) -> tuple[Tensor, Tensor]:
        """Vectors of the batch's distinct words [U, D], and bool [U], the words with a drawn vector."""
        drawn = batch.spelling != 0
        unknown = drawn.nonzero().squeeze(1)
        noise = self.table.new_empty(len(drawn), self.table.shape[1])
        noise[unknown] = normal_of(batch.spelling[unknown], noise.shape[1]).to(noise.dtype)
        if self.training and self.dropout > 0:
            chance = self.dropout / (self.dropout + batch.frequency)
            dropped = torch.rand_like(chance) < chance
            chosen = dropped.nonzero().squeeze(1)  # indexing by a mask synchronizes the GPU each time
            noise[chosen] = torch.randn_like(noise[chosen])
            drawn = drawn | dropped
        rows = drawn.nonzero().squeeze(1)
        scale = DEVIATION * self.scale.repeat_interleave(self.size)
        vectors = functional.embedding(batch.word, self.table)
        return vectors.index_copy(0, rows, noise[rows] * scale), drawn


def normal_of(seeds: Tensor, size: int) -> Tensor:
    """Standard normal numbers, float32 [n, size], of seeds, int64 [n]: the same on every machine and in every batch.

    SplitMix64 (Steele, Lea, Flood 2014) mixes counters; two halves of each result make a normal number (Box, Muller).
    """
    counter = torch.arange(1, size + 1, device=seeds.device) * -0x61C8864680B583EB
    mixed = seeds.unsqueeze(1) + counter
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    first, second = _shifted(mixed, 40) + 1, mixed & 0xFFFFFF  # 24 bits each
    radius = (-2 * (first * 2.0**-24).log()).sqrt()
    return radius * torch.cos(2 * torch.pi * 2.0**-24 * second)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift right as if unsigned."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
