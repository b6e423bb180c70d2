"""Interactions of every word of one text with every word of another, and scores of pairs of vectors.

Each distinct text of a batch is encoded once; pairs gather their two texts and multiply them. Products are float32
whatever the precision: models pool and sort them, and half precision would make ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import MatchingBatch


def pair_mask(batch: MatchingBatch) -> Tensor:
    """bool [P, T, S]: True where both positions of a pair's texts hold a word."""
    return _in_both(batch.first_text != 0, batch.second_text != 0, batch)


def word_pair_mask(batch: MatchingBatch, unknown: int) -> Tensor:
    """bool [P, T, S]: `pair_mask` without pairs of two unknown words."""
    # All unknown words have the same vector, so any two of them would be a perfect match.
    is_unknown = batch.word == unknown  # [U]
    both_unknown = _in_both(is_unknown[batch.first_text], is_unknown[batch.second_text], batch)
    return pair_mask(batch) & ~both_unknown


def _in_both(first: Tensor, second: Tensor, batch: MatchingBatch) -> Tensor:
    """bool [P, T, S]: the conjunction of bool [N, T] and [M, S] for each pair."""
    return first.index_select(0, batch.first).unsqueeze(2) & second.index_select(0, batch.second).unsqueeze(1)


def cosine_interaction(first: Tensor, second: Tensor, batch: MatchingBatch) -> Tensor:
    """Cosines of words' vectors, [N, T, D] and [M, S, D], in each pair: float32 [P, T, S], 0 at padding."""
    with torch.autocast(first.device.type, enabled=False):
        # Normalized before the gather: once per text, not once per pair.
        # index_select and not first[batch.first]: its gradient is several times faster on CPUs.
        left = unit(first).index_select(0, batch.first)  # [P, T, D]
        right = unit(second).index_select(0, batch.second)  # [P, S, D]
        return torch.bmm(left, right.transpose(1, 2)).masked_fill(~pair_mask(batch), 0.0)


def word_overlap(batch: MatchingBatch, unknown: int = 1, special: Sequence[int] = ()) -> Tensor:
    """Shares of common words, float32 [P, 4]: of the first text's words and of their idf, then both of the second's.

    Unknown words are never equal; special tokens are not counted.
    """
    is_word = torch.arange(len(batch.word), device=batch.word.device) > 0  # [U]; row 0 is padding
    for id in special:
        is_word &= batch.word != id
    # Vocabulary ids of known words, which may be 0; -1 for all others.
    word = batch.word.masked_fill(~is_word | (batch.word == unknown), -1)
    first = word[batch.first_text].index_select(0, batch.first)  # [P, T]
    second = word[batch.second_text].index_select(0, batch.second)  # [P, S]
    same = (first.unsqueeze(2) == second.unsqueeze(1)) & (first >= 0).unsqueeze(2)  # [P, T, S]
    features = []
    for text, pair, shared in (
        (batch.first_text, batch.first, same.any(dim=2)),
        (batch.second_text, batch.second, same.any(dim=1)),
    ):
        idf = batch.idf[text].float().index_select(0, pair)
        for weight in (is_word[text].float().index_select(0, pair), idf):
            features.append((weight * shared).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-6))
    return torch.stack(features, dim=1)


def unit(vectors: Tensor) -> Tensor:
    """The vectors at length 1, float32 [..., D]; a vector of zeros stays."""
    return functional.normalize(vectors.float(), dim=-1, eps=1e-6)


def pair_logits(score: Tensor, num_outputs: int) -> Tensor:
    """Logits [P, num_outputs] of scores [P]: the score itself, or those of "no match" and "match"."""
    return torch.stack([score] if num_outputs == 1 else [-score / 2, score / 2], dim=1)


class PairCosine(nn.Module):
    """Logits of a pair from its texts' cosine: scale (cosine - threshold); scale and threshold are trained.

    The threshold is needed where pairs are classified. It applies to cosines: a bias of the logits would have to move
    ten times as far, which takes Adam thousands of steps.
    """

    def __init__(self, scale: float, num_outputs: int, has_threshold: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.threshold = nn.Parameter(torch.tensor(0.5)) if has_threshold else None
        self.num_outputs = num_outputs

    def forward(self, first: Tensor, second: Tensor, batch: MatchingBatch) -> Tensor:
        """Logits [P, num_outputs], float32, of the texts' vectors [N, l] and [M, l], of length 1."""
        with torch.autocast(first.device.type, enabled=False):
            products = first.index_select(0, batch.first) * second.index_select(0, batch.second)
            cosine = products.sum(dim=1)
            above = cosine if self.threshold is None else cosine - self.threshold
            return pair_logits(self.scale * above, self.num_outputs)
