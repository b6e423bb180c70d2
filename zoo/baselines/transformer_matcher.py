"""Matching by a pre-trained transformer, which reads two texts together or each by itself.

Cross-encoder: Rodrigo Nogueira, Kyunghyun Cho: "Passage Re-ranking with BERT", 2019. The transformer reads
`[CLS] first [SEP] second [SEP]`, and a linear layer scores what came of it.
Bi-encoder: Nils Reimers, Iryna Gurevych: "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
EMNLP 2019. Each text becomes a vector once, in however many pairs it is; the score is a scaled cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.errors import InputError
from datamodules.text.tokenization import TransformersTokenizer
from zoo.layers.encoders import TransformerEncoder
from zoo.layers.interactions import ScaledCosine, unit
from zoo.tasks.ranking import Loss, MatchingOutput, MatchingTask

Mode = Literal["cross", "bi"]
Pooling = Literal["mean", "cls"]


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


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """A vector [P, l] of states [P, L, l]: the first token's, or the mean over the real ones; 0 without any."""
    if pooling == "cls":
        return states[:, 0] * mask[:, :1]
    real = mask.unsqueeze(2).to(states.dtype)
    return (states * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


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


class TransformerMatcher(MatchingTask):
    """A cross-encoder or a bi-encoder.

    Example:
        >>> model = TransformerMatcher(transformer="sentence-transformers/all-MiniLM-L6-v2", mode="cross")
    """

    paper = "Nogueira, Cho: Passage Re-ranking with BERT (2019); Reimers, Gurevych: Sentence-BERT (2019)"

    def __init__(
        self,
        transformer: str,
        mode: Mode = "cross",
        pooling: Pooling = "mean",
        scale: float = 20.0,
        dropout: float = 0.1,
        init_from: str | None = None,
        loss: Loss = "softmax",
        margin: float = 1.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=2e-5),
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            transformer: Hub name or folder of a pre-trained transformer; give the same as `--data.tokenizer`.
            mode: `cross`: the transformer reads both texts together; `bi`: each by itself.
            pooling: how the transformer's states become a vector: their mean, or the first.
            scale: initial factor of the cosine of `bi`, which is trained.
            dropout: on the vector of `cross`. The transformer's own dropout is as its configuration says.
            init_from: a checkpoint whose weights the model starts from. `--ckpt_path` resumes a run instead.
            loss: see `MatchingTask`.
            margin: of the hinge loss.
            optimizer: makes the optimizer.
            lr_scheduler: makes a schedule, stepped once an epoch.
        """
        super().__init__(optimizer, lr_scheduler, loss, margin)
        for option, value, known in (
            ("mode", mode, ("cross", "bi")),
            ("pooling", pooling, ("mean", "cls")),
        ):
            if value not in known:
                raise InputError(f"model.{option}={value!r}: must be {' or '.join(known)}")
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])

    def tokens_at_once(self, options: Mapping[str, Any]) -> tuple[int, str]:
        """See `Task.tokens_at_once`: a cross-encoder reads both texts together."""
        if self.hparams["mode"] == "bi":
            return super().tokens_at_once(options)
        return options["first_length"] + options["second_length"], "data.first_length + data.second_length"

    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> CrossEncoder | BiEncoder:
        """The transformer with a layer over it; see `Task.build_network`. Word vectors are not read."""
        options = self.hparams
        name = options["transformer"]
        prefix = 0
        # A checkpoint brings the transformer's configuration, and all weights with the prefix's length.
        if transformer_config is None:
            prefix = len(TransformersTokenizer(name, lowercase=False).prefix)
        encoder = TransformerEncoder(name, options["pooling"], transformer_config)
        bias = self.sees_constants
        if options["mode"] == "bi":
            return BiEncoder(encoder, options["scale"], spec.num_outputs, bias)
        return CrossEncoder(encoder, prefix, options["dropout"], spec.num_outputs, bias)
