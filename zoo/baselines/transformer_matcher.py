"""Matching by a pre-trained transformer, which reads two texts together or each by itself.

Cross-encoder: Rodrigo Nogueira, Kyunghyun Cho: "Passage Re-ranking with BERT", 2019. The transformer reads
`[CLS] first [SEP] second [SEP]`, and a linear layer scores what came of it.
Bi-encoder: Nils Reimers, Iryna Gurevych: "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
EMNLP 2019. Each text becomes a vector once, in however many pairs it is; the score is a scaled cosine.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.text.pooling import Pooling, pool
from datamodules.text.tokenization import TransformersTokenizer
from zoo.layers.encoders import TransformerEncoder
from zoo.layers.interactions import ScaledCosine, unit
from zoo.tasks.base import check_choices
from zoo.tasks.encoders import ReadsTransformer
from zoo.tasks.matching.task import MatchingOutput, MatchingTask

Mode: TypeAlias = Literal["cross", "bi"]


class CrossEncoder(nn.Module):
    """One reading of both texts."""

    def __init__(
        self, encoder: TransformerEncoder, prefix: int, dropout: float, num_outputs: int, bias: bool
    ) -> None:
        """Make the layer over the transformer.

        Args:
            encoder: the transformer.
            prefix: special tokens before a text; the second text of a pair gets none.
            dropout: on the transformer's vector.
            num_outputs: logits.
            bias: give the layer a bias.
        """
        super().__init__()
        self.encoder = encoder
        # In the weights, because a checkpoint must load where the tokenizer is not.
        self.prefix: Tensor
        self.register_buffer("prefix", torch.tensor(prefix))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(encoder.size, num_outputs, bias=bias)
        config = encoder.transformer.config
        self.has_types = getattr(config, "type_vocab_size", 0) > 1

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        tokens, types = self.join(batch)
        mask = tokens != 0  # [P, L]
        # A pair without tokens still needs one to attend to; its vector is zeroed below.
        attended = mask.clone()
        attended[:, 0] = True
        more = {"token_type_ids": types} if self.has_types else {}
        states = self.encoder.transformer(
            input_ids=batch.word[tokens], attention_mask=attended.long(), **more
        ).last_hidden_state
        with torch.autocast(states.device.type, enabled=False):
            vector = pool(states.float(), mask, self.encoder.pooling)
            return MatchingOutput(self.out(self.dropout(vector)))

    def join(self, batch: MatchingBatch) -> tuple[Tensor, Tensor]:
        """The two texts of each pair one after the other.

        Returns:
            int64 [P, L], positions in `batch.word`, 0 = padding; and int64 [P, L], 1 in the second text.
        """
        first, second = batch.first_text[batch.first], batch.second_text[batch.second]
        ends = (first != 0).sum(dim=1, keepdim=True)  # [P, 1]
        rest = (second != 0).sum(dim=1, keepdim=True) - self.prefix
        length = ends + rest.clamp(min=0)
        place = torch.arange(max(1, int(length.max())), device=first.device).expand(len(first), -1)  # [P, L]
        before = first.gather(1, place.clamp(max=first.shape[1] - 1))
        after = second.gather(1, (place - ends + self.prefix).clamp(0, second.shape[1] - 1))
        in_second = (place >= ends) & (place < length)
        tokens = torch.where(place < ends, before, after * in_second)
        return tokens, in_second.long()


class BiEncoder(nn.Module):
    """Each text's own vector, and their cosine."""

    def __init__(self, encoder: TransformerEncoder, scale: float, num_outputs: int, bias: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.out = ScaledCosine(scale, num_outputs, bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        first = unit(self.encoder(batch.word, batch.char, batch.first_text))  # [N, l]
        second = unit(self.encoder(batch.word, batch.char, batch.second_text))  # [M, l]
        products = first.index_select(0, batch.first) * second.index_select(0, batch.second)
        return MatchingOutput(self.out(products.sum(dim=1)))


class TransformerMatcher(ReadsTransformer, MatchingTask):
    """A cross-encoder or a bi-encoder.

    Example:
        >>> model = TransformerMatcher(transformer="sentence-transformers/all-MiniLM-L6-v2", mode="cross")
    """

    paper = "Nogueira, Cho: Passage Re-ranking with BERT (2019); Reimers, Gurevych: Sentence-BERT (2019)"
    ranking_loss = "softmax"
    can_be_sharded = True

    def __init__(
        self,
        transformer: str,
        mode: Mode = "cross",
        pooling: Pooling = "mean",
        scale: float = 20.0,
        dropout: float = 0.1,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=2e-5),
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            transformer: Hub name or folder of a pre-trained transformer; the data's tokens are its own.
            mode: `cross`: the transformer reads both texts together; `bi`: each by itself.
            pooling: how the transformer's states become a vector: their mean, or the first.
            scale: initial factor of the cosine of `bi`, which is trained.
            dropout: on the vector of `cross`; inside, the transformer has its configuration's own.
            optimizer: makes the optimizer.
            **shared: options of `ReadsTransformer`, `MatchingTask` and `Task`.
        """
        super().__init__(optimizer=optimizer, **shared)
        check_choices(self.options, mode=("cross", "bi"), pooling=("mean", "cls"))

    @override
    def tokens_at_once(self, lengths: dict[str, int]) -> tuple[int, str]:
        if self.options.mode == "bi":
            return super().tokens_at_once(lengths)
        return sum(lengths.values()), " + ".join(f"data.{name}" for name in lengths)

    @override
    def describe_size(self) -> str:
        return "the transformer's, and a layer's over it"

    @override
    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> CrossEncoder | BiEncoder:
        # The transformer with a layer over it. Word vectors are not read.
        options, prefix = self.options, 0
        # A checkpoint brings the transformer's configuration, and all weights with the prefix's length.
        if transformer_config is None:
            prefix = len(TransformersTokenizer(options.transformer, lowercase=False).prefix)
        encoder = TransformerEncoder(
            options.transformer, options.pooling, transformer_config, options.lora_rank
        )
        bias = self.sees_constants(spec)
        if options.mode == "bi":
            return BiEncoder(encoder, options.scale, spec.num_outputs, bias)
        return CrossEncoder(encoder, prefix, options.dropout, spec.num_outputs, bias)
