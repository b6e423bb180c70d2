"""Matching of two short texts by their words' interactions in context: MV-LSTM and aMV-LSTM.

Shengxian Wan et al.: "A Deep Architecture for Semantic Matching with Multiple Positional Sentence
Representations", AAAI 2016 (MV-LSTM), and Thiziri Belkacem, Taoufiq Dkaki, Jose G. Moreno, Mohand Boughanem:
"aMV-LSTM: an attention-based model with multiple positional text matching", SAC 2019. Equation numbers below
are the second paper's.

A BiLSTM gives each word of a text a state that knows the words around it. The states of the two texts are
compared, every one with every one, and the k strongest interactions make the score. aMV-LSTM weighs the words
of a text by attention before the BiLSTM reads them; without attention it is MV-LSTM.

Shapes: a batch has P pairs of N distinct first texts (questions) of T words and M distinct second texts
(answers) of S words; D is the size of a word's vector, H of a state of one direction; R interactions of two
words are taken (forward and backward states, slices of a tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from zoo.layers.encoders import TransformerEncoder, WordEncoder
from zoo.layers.interactions import cosine_interaction, dot_interaction, pair_mask
from zoo.layers.lstm import AllStatesLSTM
from zoo.tasks.base import check_choices, check_sizes
from zoo.tasks.encoders import FrozenEncoder, WordVectors
from zoo.tasks.matching.task import MatchingOutput, MatchingTask

Attention: TypeAlias = Literal["none", "question", "answer", "both"]
AttentionScale: TypeAlias = Literal["paper", "length"]
Interaction: TypeAlias = Literal["directions", "concatenated"]
Similarity: TypeAlias = Literal["cosine", "bilinear", "tensor"]


class Texts(NamedTuple):
    """Texts as rows of a table of vectors: a word's vector stands there once, however often it is read."""

    #: [V, D].
    table: Tensor
    #: int64 [N, T], rows of `table`; anything at padding.
    rows: Tensor
    #: bool [N, T], True where there is a word; words come before padding.
    mask: Tensor


class WordAttention(nn.Module):
    """How much each word of a text counts (Equation 4): alpha_t = softmax_t(v . w_t), w'_t = alpha_t w_t.

    As published, the weights of a text add up to 1, so the BiLSTM reads a text of 20 words at a twentieth of
    its scale, and a text without attention at its own. `scale="length"` multiplies by the number of words:
    equal weights then change nothing, which is what v = 0 starts with.
    """

    def __init__(self, size: int, scale: AttentionScale) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(size))
        self.scale = scale

    def forward(self, texts: Texts) -> Texts:
        """Weigh the words; every place of every text has a row of its own afterwards."""
        vectors = texts.table[texts.rows]  # [N, T, D]
        # In float32 whatever the precision, like every softmax here.
        with torch.autocast(vectors.device.type, enabled=False):
            energy = vectors.float() @ self.v.float()  # [N, T]
            lowest = torch.finfo(energy.dtype).min
            alpha = energy.masked_fill(~texts.mask, lowest).softmax(dim=1) * texts.mask
            if self.scale == "length":
                alpha = alpha * texts.mask.sum(dim=1, keepdim=True)
            weighed = alpha.unsqueeze(2) * vectors
        return Texts(weighed.flatten(0, 1), _own_rows(texts.mask), texts.mask)


class Interactions(nn.Module):
    """R ways to compare a state of the first text with a state of the second, each for all pairs of places.

    - `cosine`: of each part of the states, u.v / (|u| |v|);
    - `bilinear`: of each part, u' M v + b;
    - `tensor`: for each part, `slices` times ReLU(u' M v + w.[u, v] + b).

    The parts of a state are its forward and its backward half (`directions`), or the whole (`concatenated`).
    """

    def __init__(
        self, similarity: Similarity, interaction: Interaction, hidden_size: int, slices: int
    ) -> None:
        super().__init__()
        self.similarity = similarity
        self.parts = 2 if interaction == "directions" else 1
        width = 2 * hidden_size // self.parts
        self.slices = slices if similarity == "tensor" else 1
        self.size = self.parts * self.slices  # R
        if similarity != "cosine":
            bound = width**-0.5
            self.matrix = nn.Parameter(torch.empty(self.size, width, width).uniform_(-bound, bound))
            self.bias = nn.Parameter(torch.zeros(self.size))
        if similarity == "tensor":
            self.first_weight = nn.Parameter(torch.empty(self.size, width).uniform_(-bound, bound))
            self.second_weight = nn.Parameter(torch.empty(self.size, width).uniform_(-bound, bound))

    def forward(self, first: Tensor, second: Tensor, batch: MatchingBatch) -> Tensor:
        """Compare states [N, T, 2H] and [M, S, 2H]: float32 [P, R, T, S], anything where there is no word."""
        # The parts lie one after the other in a state.
        firsts, seconds = first.chunk(self.parts, dim=2), second.chunk(self.parts, dim=2)
        if self.similarity == "cosine":
            matrices = [cosine_interaction(u, v, batch) for u, v in zip(firsts, seconds, strict=True)]
            return torch.stack(matrices, dim=1)
        with torch.autocast(first.device.type, enabled=False):
            matrices = []
            for r in range(self.size):
                u, v = firsts[r // self.slices].float(), seconds[r // self.slices].float()
                matrix = dot_interaction(u @ self.matrix[r], v, batch) + self.bias[r]  # [P, T, S]
                if self.similarity == "tensor":
                    # w.[u, v] is a sum of what each word brings alone.
                    alone_first = (u @ self.first_weight[r]).index_select(0, batch.first)  # [P, T]
                    alone_second = (v @ self.second_weight[r]).index_select(0, batch.second)  # [P, S]
                    matrix = (matrix + alone_first.unsqueeze(2) + alone_second.unsqueeze(1)).relu()
                matrices.append(matrix)
            return torch.stack(matrices, dim=1)


def k_max(interaction: Tensor, mask: Tensor, k: int, none: Tensor) -> Tensor:
    """The k largest interactions of each kind, largest first.

    Args:
        interaction: float32 [P, R, T, S].
        mask: bool [P, T, S], True where both places hold a word.
        k: how many.
        none: float32 [R], what stands for the missing ones where a pair has fewer than k.

    Returns:
        float32 [P, R * k].
    """
    flat = interaction.masked_fill(~mask.unsqueeze(1), -torch.inf).flatten(2)  # [P, R, T*S]
    largest = flat.topk(min(k, flat.shape[2]), dim=2).values
    largest = functional.pad(largest, (0, k - largest.shape[2]), value=-torch.inf)
    return torch.where(largest.isneginf(), none.unsqueeze(1), largest).flatten(1)


def overlap(batch: MatchingBatch, unknown: int = 1, special: Sequence[int] = ()) -> Tensor:
    """What two texts share word by word.

    Args:
        batch: pairs of texts.
        unknown: vocabulary id of words that equal nothing.
        special: ids of tokens that are no words and do not count at all.

    Returns:
        float32 [P, 4]: of the first text's words the share that the second has, and the same in shares of
        idf; then the second text's words likewise.
    """
    is_word = batch.first_text.new_ones(len(batch.word), dtype=torch.bool)  # [U]
    is_word[0] = False  # padding
    for id in special:
        is_word &= batch.word != id
    # Known words by their vocabulary ids, which may be 0; -1 for the others.
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


class TransformerTokens(TransformerEncoder):
    """The tokens' vectors in context, from the last layer of a pre-trained transformer."""

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts; arguments as of `TransformerEncoder.forward`.

        Returns:
            [N, T, size]; anything at padding.
        """
        attended = text != 0
        attended[:, 0] = True  # a text without tokens still needs one to attend to
        states: Tensor = self.transformer(
            input_ids=word[text], attention_mask=attended.long()
        ).last_hidden_state
        return states


class AMVLSTMNetwork(nn.Module):
    """Figure 2: words, attention, positions, interactions, k-max pooling, score."""

    def __init__(self, words: WordEncoder | TransformerTokens, options: Any, spec: MatchingSpec) -> None:
        """Make the parts.

        Args:
            words: vectors of words, or of a transformer's tokens.
            options: of `AMVLSTM`.
            spec: of the data.
        """
        super().__init__()
        self.words = words
        self.options, self.spec = options, spec
        attention, scale, hidden_size = options.attention, options.attention_scale, options.hidden_size
        interactions = Interactions(options.similarity, options.interaction, hidden_size, options.slices)
        self.first_attention = self.second_attention = None
        if attention in ("question", "both"):
            self.first_attention = WordAttention(words.size, scale)
        if attention in ("answer", "both"):
            self.second_attention = WordAttention(words.size, scale)
        self.lstm = AllStatesLSTM(words.size, hidden_size, bidirectional=True)
        self.second_lstm = (
            None if options.shared_encoder else AllStatesLSTM(words.size, hidden_size, bidirectional=True)
        )
        self.interactions = interactions
        size = interactions.size
        self.none = nn.Parameter(torch.zeros(size))
        self.dropout = nn.Dropout(options.dropout)
        self.mlp = nn.Sequential(
            nn.Linear(size * options.k + (4 if options.overlap else 0), options.mlp_size),
            nn.ReLU(),
            nn.Dropout(options.dropout),
            nn.Linear(options.mlp_size, spec.num_outputs),
        )

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        first, second = self._texts(batch)
        if self.first_attention is not None:
            first = self.first_attention(first)
        if self.second_attention is not None:
            second = self.second_attention(second)
        first_states, second_states = self._positions(first, second)  # [N, T, 2H], [M, S, 2H]
        mask = pair_mask(batch)  # [P, T, S]
        interaction = self.interactions(first_states, second_states, batch)  # [P, R, T, S]
        features = [k_max(interaction, mask, self.options.k, self.none)]  # [P, R*k]
        if self.options.overlap:
            features.append(overlap(batch, self.spec.unknown, self.spec.special))
        # Scores are float32 whatever the precision.
        with torch.autocast(mask.device.type, enabled=False):
            logits = self.mlp(torch.cat(features, dim=1))  # Equation 3
        return MatchingOutput(logits, interaction.detach().mean(dim=1) * mask)

    def _texts(self, batch: MatchingBatch) -> tuple[Texts, Texts]:
        """Both texts' vectors: of words, each once, or of a transformer's tokens, each where it stands."""
        first_mask, second_mask = batch.first_text != 0, batch.second_text != 0
        if isinstance(self.words, WordEncoder):
            table = self.dropout(self.words(batch.word, batch.char))  # [U, D]
            return Texts(table, batch.first_text, first_mask), Texts(table, batch.second_text, second_mask)
        first, second = batch.first_vector, batch.second_vector
        if first is None or second is None:
            first = self.words(batch.word, batch.char, batch.first_text)  # [N, T, D]
            second = self.words(batch.word, batch.char, batch.second_text)  # [M, S, D]
        return (
            Texts(self.dropout(first).flatten(0, 1), _own_rows(first_mask), first_mask),
            Texts(self.dropout(second).flatten(0, 1), _own_rows(second_mask), second_mask),
        )

    def _positions(self, first: Texts, second: Texts) -> tuple[Tensor, Tensor]:
        """The BiLSTM's states [N, T, 2H] and [M, S, 2H] (Equations 1 and 2)."""
        first_lengths, second_lengths = first.mask.sum(dim=1), second.mask.sum(dim=1)
        if self.second_lstm is not None:
            return (
                self.lstm(first.table, first.rows, first_lengths),
                self.second_lstm(second.table, second.rows, second_lengths),
            )
        # One call for all texts: its cost is mostly that of its steps.
        table, second_rows = first.table, second.rows
        if second.table is not first.table:
            table = torch.cat([first.table, second.table])
            second_rows = second_rows + len(first.table)
        (n, t), (m, s) = first.rows.shape, second.rows.shape
        rows = second_rows.new_zeros(n + m, max(t, s))
        rows[:n, :t], rows[n:, :s] = first.rows, second_rows
        states = self.lstm(table, rows, torch.cat([first_lengths, second_lengths]))
        return states[:n, :t], states[n:, :s]


def _own_rows(mask: Tensor) -> Tensor:
    """int64 [N, T]: row numbers of a table that has a row for every place."""
    return torch.arange(mask.numel(), device=mask.device).view(mask.shape)


class AMVLSTM(WordVectors, FrozenEncoder, MatchingTask):
    """MV-LSTM (`attention="none"`) and aMV-LSTM (Q), (A), (Q+A): `"question"`, `"answer"`, `"both"`.

    Example:
        >>> model = AMVLSTM(attention="question", attention_scale="length")
    """

    encoder_name = "words"
    can_be_sharded = True
    paper = (
        "Belkacem, Dkaki, Moreno, Boughanem: aMV-LSTM: an attention-based model with multiple positional text"
        " matching (SAC 2019)"
    )

    def __init__(
        self,
        attention: Attention = "question",
        attention_scale: AttentionScale = "length",
        interaction: Interaction = "directions",
        similarity: Similarity = "cosine",
        slices: int = 4,
        k: int = 100,
        hidden_size: int = 50,
        shared_encoder: bool = True,
        mlp_size: int = 20,
        overlap: bool = False,
        dropout: float = 0.0,
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            attention: whose words are weighed before the BiLSTM reads them: of no text (MV-LSTM), of the first
                (`question`), of the second (`answer`), or of both, each with a vector v of its own.
            attention_scale: `paper`: weights add up to 1, which shrinks what the BiLSTM reads by about the
                text's length; `length`: they add up to the number of words, so equal weights change nothing.
            interaction: what is compared: forward states and backward states, each with its like
                (`directions`), or the two joined (`concatenated`). Both are published.
            similarity: how two states are compared, see `Interactions`; the paper's is cosine.
            slices: interactions that `similarity="tensor"` makes of two states.
            k: strongest interactions that make the score, of each kind.
            hidden_size: state size of one direction of the BiLSTM.
            shared_encoder: read both texts with one BiLSTM, as two need more data than WikiQA has.
            mlp_size: hidden units between interactions and score.
            overlap: show the score also which shares of the texts' words, and of their idf, the other text has.
                The paper has none.
            dropout: on word vectors, all occurrences of a word in a batch alike, and before the last layer;
                the paper has none.
            **shared: options of `WordVectors`, `FrozenEncoder` (whose token vectors take the place of word
                vectors), `MatchingTask` (Equations 5 and 6 are `hinge` and `cross_entropy`) and `Task`.
        """
        super().__init__(**shared)
        options = self.options
        check_choices(
            options,
            attention=("none", "question", "answer", "both"),
            attention_scale=("paper", "length"),
            interaction=("directions", "concatenated"),
            similarity=("cosine", "bilinear", "tensor"),
        )
        check_sizes(options, "k", "slices", "hidden_size", "mlp_size")
        if options.freeze_encoder and options.transformer is None:
            raise InputError(
                "model.freeze_encoder is on, but there is no transformer; word vectors are fixed by"
                " --model.train_word_vectors false"
            )

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> AMVLSTMNetwork:
        words: WordEncoder | TransformerTokens
        if self.options.transformer is not None:
            options = self.options
            words = TransformerTokens(
                options.transformer, config=transformer_config, lora_rank=options.lora_rank
            )
        else:
            words = self.make_words(spec, word_vectors)
        return AMVLSTMNetwork(words, self.options, spec)

    @override
    def frozen_encoder(self) -> tuple[nn.Module, dict[str, Any]] | None:
        # Word vectors are looked up as quickly as vectors of texts.
        is_transformer = self.options.transformer is not None
        return (self.network.words, {"vectors": "tokens"}) if is_transformer else None
