"""Matching of two short texts by the interactions of their words in context: MV-LSTM and aMV-LSTM.

Shengxian Wan et al.: "A Deep Architecture for Semantic Matching with Multiple Positional Sentence Representations",
AAAI 2016 (MV-LSTM), and Thiziri Belkacem, Taoufiq Dkaki, Jose G. Moreno, Mohand Boughanem: "aMV-LSTM: an
attention-based model with multiple positional text matching", SAC 2019. Equation numbers below are the second paper's.

A BiLSTM gives each word of a text a state that depends on the words around it. Every state of the first text is
compared with every state of the second, and the k strongest interactions make the score. aMV-LSTM weights the words of
a text by attention before the BiLSTM reads them; without attention it is MV-LSTM.

Shapes: a batch has P pairs of N distinct first texts (questions) of T words and M distinct second texts (answers) of S
words; D is the size of a word's vector, H of a state of one direction; R interactions of two words are computed (of
forward and of backward states, or of both together).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.core.types import Size
from zoo.layers.encoders import TransformerTokens, WordEncoder
from zoo.layers.interactions import cosine_interaction, pair_mask, word_overlap
from zoo.layers.recurrent import RowLSTM
from zoo.layers.vote import masked_softmax
from zoo.tasks.encoders import FrozenEncoder, ReadsWordVectors
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput

AttentionScale: TypeAlias = Literal["paper", "length"]


class Tokens(NamedTuple):
    """Texts as rows of a table of vectors, in which a word may have one row for all its occurrences."""

    #: [V, D].
    table: Tensor
    #: int64 [N, T], rows of `table`; anything at padding.
    rows: Tensor
    #: bool [N, T], True where there is a word; words come before padding.
    mask: Tensor

    @classmethod
    def of(cls, vectors: Tensor, mask: Tensor) -> Tokens:
        """Texts [N, T, D] with a row for every position."""
        rows = torch.arange(mask.numel(), device=mask.device).view(mask.shape)
        return cls(vectors.flatten(0, 1), rows, mask)


#: Hidden units between interactions and score.
MLP_SIZE = 20


class WordAttention(nn.Module):
    """Attention on the words of a text (Equation 4): alpha_t = softmax_t(v . w_t), w'_t = alpha_t w_t.

    As published, the weights of a text add up to 1. `scale="length"` multiplies them by the number of words: equal
    weights, with which the training starts (v = 0), then change nothing.
    """

    def __init__(self, size: int, scale: AttentionScale) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(size))
        self.scale = scale

    def forward(self, texts: Tokens) -> Tokens:
        """Weight the words."""
        vectors = texts.table[texts.rows]  # [N, T, D]
        # Softmax is float32 whatever the precision.
        with torch.autocast(vectors.device.type, enabled=False):
            alpha = masked_softmax(vectors.float() @ self.v.float(), texts.mask)  # [N, T]
            if self.scale == "length":
                alpha = alpha * texts.mask.sum(dim=1, keepdim=True)
            return Tokens.of(alpha.unsqueeze(2) * vectors, texts.mask)


def k_max(interaction: Tensor, mask: Tensor, k: int, none: Tensor) -> Tensor:
    """The k largest of the interactions [P, R, T, S] of each kind, largest first: float32 [P, R * k].

    `mask` bool [P, T, S] marks pairs of words; `none` [R] is the value where a pair has fewer than k.
    """
    flat = interaction.masked_fill(~mask.unsqueeze(1), -torch.inf).flatten(2)  # [P, R, T*S]
    largest = flat.topk(min(k, flat.shape[2]), dim=2).values
    largest = functional.pad(largest, (0, k - largest.shape[2]), value=-torch.inf)
    return torch.where(largest.isneginf(), none.unsqueeze(1), largest).flatten(1)


class AMVLSTMNetwork(nn.Module):
    """Figure 2: words, attention, positions, interactions, k-max pooling, score."""

    #: vectors of words, or of a transformer's tokens.
    words: WordEncoder | TransformerTokens

    def __init__(self, given: Given[MatchingSpec], options: AMVLSTM) -> None:
        super().__init__()
        if options.transformer is None:
            self.words = options.make_words(given)
        else:
            self.words = TransformerTokens(options.transformer, given.transformer_config, options.lora_rank)
        size, hidden_size = self.words.size, options.hidden_size
        self.spec, self.k, self.overlap = given.spec, options.k, options.overlap
        self.first_attention, self.second_attention = (
            WordAttention(size, options.attention_scale)
            if options.attention in (side, "both")
            else nn.Identity()
            for side in ("question", "answer")
        )
        self.lstm = RowLSTM(size, hidden_size, bidirectional=True)
        self.parts = 2 if options.interaction == "directions" else 1  # R
        self.none = nn.Parameter(torch.zeros(self.parts))
        self.dropout = nn.Dropout(options.dropout)
        self.mlp = nn.Sequential(
            nn.Linear(self.parts * self.k + (4 if self.overlap else 0), MLP_SIZE),
            nn.ReLU(),
            nn.Dropout(options.dropout),
            nn.Linear(MLP_SIZE, given.spec.num_outputs),
        )

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        first, second = self._texts(batch)
        first, second = self.first_attention(first), self.second_attention(second)
        left, right = self._positions(first, second)  # [N, T, 2H], [M, S, 2H]
        mask = pair_mask(batch)  # [P, T, S]
        parts = zip(left.chunk(self.parts, dim=2), right.chunk(self.parts, dim=2), strict=True)
        interaction = torch.stack([cosine_interaction(u, v, batch) for u, v in parts], dim=1)  # [P, R, T, S]
        features = [k_max(interaction, mask, self.k, self.none)]  # [P, R*k]
        if self.overlap:
            features.append(word_overlap(batch, self.spec.unknown, self.spec.special))
        # Scores are float32 whatever the precision.
        with torch.autocast(mask.device.type, enabled=False):
            logits = self.mlp(torch.cat(features, dim=1))  # Equation 3
        return MatchingOutput(logits, interaction.detach().mean(dim=1) * mask)

    def _texts(self, batch: MatchingBatch) -> tuple[Tokens, Tokens]:
        """The vectors of both texts: of each distinct word, or of each token of a transformer in its context."""
        first_mask, second_mask = batch.first_text != 0, batch.second_text != 0
        if isinstance(self.words, WordEncoder):
            table = self.dropout(self.words(batch.word, batch.char))  # [U, D]
            return Tokens(table, batch.first_text, first_mask), Tokens(table, batch.second_text, second_mask)
        first, second = batch.first_vector, batch.second_vector
        if first is None or second is None:
            first = self.words(batch.word, batch.char, batch.first_text)  # [N, T, D]
            second = self.words(batch.word, batch.char, batch.second_text)  # [M, S, D]
        return Tokens.of(self.dropout(first), first_mask), Tokens.of(self.dropout(second), second_mask)

    def _positions(self, first: Tokens, second: Tokens) -> tuple[Tensor, Tensor]:
        """The BiLSTM's states [N, T, 2H] and [M, S, 2H] (Equations 1 and 2)."""
        first_lengths, second_lengths = first.mask.sum(dim=1), second.mask.sum(dim=1)
        # One call for all texts: its cost grows with the number of steps, hardly with that of texts.
        table, second_rows = first.table, second.rows
        if second.table is not first.table:
            table = torch.cat([first.table, second.table])
            second_rows = second_rows + len(first.table)
        (n, t), (m, s) = first.rows.shape, second.rows.shape
        rows = second_rows.new_zeros(n + m, max(t, s))
        rows[:n, :t], rows[n:, :s] = first.rows, second_rows
        states = self.lstm(table, rows, torch.cat([first_lengths, second_lengths]))
        return states[:n, :t], states[n:, :s]


class AMVLSTM(ReadsWordVectors, FrozenEncoder, MatchingTask):
    """MV-LSTM (`attention="none"`) and aMV-LSTM (Q), (A), (Q+A): `"question"`, `"answer"`, `"both"`.

    Args:
        attention: texts whose words are weighted before the BiLSTM reads them: none (MV-LSTM), the first
            (`question`), the second (`answer`), or both, each with a vector v of its own.
        attention_scale: sum of a text's weights: 1 (`paper`), or its number of words (`length`).
        interaction: compare states of one direction (`directions`), or `concatenated` states; both are published.
        k: number of strongest interactions, of each kind, that make the score.
        hidden_size: H, state size of one direction of the BiLSTM.
        overlap: add the shares of common words, see `word_overlap`, to the interactions. The paper has none.
        dropout: on word vectors (one mask for a word in a batch) and before the last layer; 0 in the paper.
        **shared: options of the bases; Equations 5 and 6 are `MatchingTask`'s losses `hinge` and `cross_entropy`.
    """

    network_type = AMVLSTMNetwork
    encoder_name = "words"

    def __init__(
        self,
        attention: Literal["none", "question", "answer", "both"] = "question",
        attention_scale: AttentionScale = "length",
        interaction: Literal["directions", "concatenated"] = "directions",
        k: Size = 100,
        hidden_size: Size = 50,
        overlap: bool = False,
        dropout: float = 0.0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if self.freeze_encoder and self.transformer is None:
            raise InputError(
                "model.freeze_encoder: no transformer; word vectors are fixed by --model.train_word_vectors false"
            )
        self.attention, self.attention_scale = attention, attention_scale
        self.interaction, self.k, self.hidden_size = interaction, k, hidden_size
        self.overlap, self.dropout = overlap, dropout
