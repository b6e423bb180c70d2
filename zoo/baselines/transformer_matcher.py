"""Matching by a pre-trained transformer, which reads two texts together or each by itself.

Cross-encoder: Rodrigo Nogueira, Kyunghyun Cho: "Passage Re-ranking with BERT", 2019. The transformer reads
`[CLS] first [SEP] second [SEP]`, and a linear layer scores its pooled states.
Bi-encoder: Nils Reimers, Iryna Gurevych: "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", EMNLP 2019.
Each distinct text is encoded once; the score is a scaled cosine.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.lightning import OptimizerCallable
from datamodules.text.tokenization import TransformersTokenizer
from zoo.layers.encoders import TransformerEncoder
from zoo.layers.interactions import PairCosine, unit
from zoo.tasks.encoders import ReadsTransformer
from zoo.tasks.matching.task import MatchingTask
from zoo.tasks.model import Given
from zoo.tasks.outputs import MatchingOutput

#: Initial factor of the cosine of `bi`, which is trained.
FIRST_SCALE = 20.0


class CrossEncoder(nn.Module):
    """A transformer that reads both texts, and a linear layer."""

    prefix: Tensor

    def __init__(
        self, encoder: TransformerEncoder, prefix: int, spec: MatchingSpec, options: TransformerMatcher
    ) -> None:
        """Remove `prefix` special tokens before the second text of a pair."""
        super().__init__()
        self.encoder = encoder
        # A buffer, since a checkpoint must load without the tokenizer.
        self.register_buffer("prefix", torch.tensor(prefix))
        self.dropout = nn.Dropout(options.dropout)
        self.out = nn.Linear(encoder.size, spec.num_outputs, bias=options.has_bias(spec))
        self.has_types = getattr(encoder.transformer.config, "type_vocab_size", 0) > 1

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        tokens, types = self.join(batch)
        states = self.encoder.token_states(batch.word, tokens, types if self.has_types else None)
        with torch.autocast(states.device.type, enabled=False):
            vector = self.encoder.text_vectors(states.float(), tokens != 0)
            return MatchingOutput(self.out(self.dropout(vector)))

    def join(self, batch: MatchingBatch) -> tuple[Tensor, Tensor]:
        """The joined texts: int64 [P, L], positions in `batch.word`, 0 = padding; and int64 [P, L], 1 in the second."""
        first, second = batch.first_text[batch.first], batch.second_text[batch.second]
        ends = (first != 0).sum(dim=1, keepdim=True)  # [P, 1]
        rest = (second != 0).sum(dim=1, keepdim=True) - self.prefix
        length = ends + rest.clamp(min=0)
        longest = max(1, int(length.max()))
        position = torch.arange(longest, device=first.device).expand(len(first), -1)  # [P, L]
        before = first.gather(1, position.clamp(max=first.shape[1] - 1))
        after = second.gather(1, (position - ends + self.prefix).clamp(0, second.shape[1] - 1))
        in_second = (position >= ends) & (position < length)
        tokens = torch.where(position < ends, before, after * in_second)
        return tokens, in_second.long()


class BiEncoder(nn.Module):
    """A transformer that encodes each text, and the cosine of two vectors."""

    def __init__(self, encoder: TransformerEncoder, out: PairCosine) -> None:
        super().__init__()
        self.encoder, self.out = encoder, out

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        first = unit(self.encoder(batch.word, batch.char, batch.first_text))  # [N, l]
        second = unit(self.encoder(batch.word, batch.char, batch.second_text))  # [M, l]
        return MatchingOutput(self.out(first, second, batch))


class TransformerMatcher(ReadsTransformer, MatchingTask):
    """A cross-encoder or a bi-encoder.

    Args:
        transformer: Hub name or folder of a pre-trained transformer; the data's tokens are its own.
        mode: `cross`: the transformer reads both texts together; `bi`: each by itself.
        dropout: on the vector of `cross`; inside, the transformer has its configuration's own.
        optimizer: makes the optimizer.
    """

    ranking_loss = "softmax"
    transformer: str

    def __init__(
        self,
        transformer: str,
        mode: Literal["cross", "bi"] = "cross",
        dropout: float = 0.1,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=2e-5),
        **shared: Any,
    ) -> None:
        super().__init__(transformer=transformer, optimizer=optimizer, **shared)
        self.mode, self.dropout, self.joins_texts = mode, dropout, mode == "cross"

    @override
    def build_network(self, given: Given[MatchingSpec]) -> CrossEncoder | BiEncoder:
        spec = given.spec
        prefix = 0  # a checkpoint has the transformer's configuration, and the prefix among its weights
        if given.transformer_config is None:
            prefix = len(TransformersTokenizer(self.transformer, lowercase=False).special_ids[0])
        options = self.transformer, given.transformer_config, self.lora_rank
        encoder = TransformerEncoder(*options, has_dense=self.mode == "bi")
        if self.mode == "bi":
            return BiEncoder(encoder, PairCosine(FIRST_SCALE, spec.num_outputs, self.has_bias(spec)))
        return CrossEncoder(encoder, prefix, spec, self)
