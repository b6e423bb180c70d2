"""Encoders: from the distinct words of a batch to one vector per text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from datamodules.text.sentence_modules import SentenceModules, text_vectors
from zoo.layers.lora import add_adapters
from zoo.layers.recurrent import RowLSTM

log = logging.getLogger(__name__)

#: Size of the vector of a character.
CHAR_SIZE = 20


class WordEncoder(nn.Module):
    """A word's vector: its row of a table and, optionally, the last state of an LSTM over its characters."""

    def __init__(
        self,
        num_words: int,
        word_size: int,
        num_chars: int = 0,
        char_hidden_size: int = 50,
        table: Tensor | None = None,
        train_table: bool = True,
    ) -> None:
        """Make a table [num_words, word_size], random without initial values, and a character LSTM if `num_chars` > 0.

        Row 0 is padding.
        """
        super().__init__()
        if table is None:
            table = torch.empty(num_words, word_size).normal_(std=0.1)
            table[0] = 0
        if len(table) != num_words:
            raise ValueError(f"{len(table)} word vectors of {num_words} words")
        # Several processes may share a memory-mapped, read-only table, so a frozen table is not copied.
        self.table = nn.Parameter(table, requires_grad=train_table)
        #: the table's gradient is sparse.
        self.is_sparse = False
        #: makes the delayed updates of some rows by a `RowAdam`, or of all (None).
        self.settle: Callable[[Tensor | None], None] | None = None
        # A state dict has the weights after all updates.
        self.register_state_dict_pre_hook(WordEncoder.settle_all)  # type: ignore[no-untyped-call]
        self.size = word_size
        self.char_table: nn.Embedding | None = None
        if num_chars:
            self.char_table = nn.Embedding(num_chars, CHAR_SIZE, padding_idx=0)
            self.char_lstm = RowLSTM(CHAR_SIZE, char_hidden_size)
            self.size += char_hidden_size

    def forward(self, word: Tensor, char: Tensor | None = None) -> Tensor:
        """Encode words [U], vocabulary ids, with characters [U, L], 0 = padding: [U, size], zero for word 0."""
        is_word = (word != 0).unsqueeze(1)
        vectors: Tensor = self.rows(word) * is_word  # [U, word_size]
        if self.char_table is None or char is None:
            return vectors
        spelled = self.char_lstm.last_states(self.char_table.weight, char, (char != 0).sum(dim=1))
        return torch.cat([vectors, spelled * is_word], dim=1)

    def rows(self, ids: Tensor) -> Tensor:
        """Read rows of the table: [..., word_size] of int64 [...]."""
        if self.settle is not None:
            self.settle(ids.flatten())
        return functional.embedding(ids, self.table, sparse=self.is_sparse)

    def settle_all(self, *_: object) -> None:
        """Make all delayed updates."""
        if self.settle is not None:
            self.settle(None)


class BiLSTMEncoder(nn.Module):
    """A text's vector: the last forward and the last backward state of a BiLSTM over its words."""

    def __init__(self, words: WordEncoder, hidden_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = words
        self.dropout = nn.Dropout(dropout)
        self.lstm = RowLSTM(words.size, hidden_size, bidirectional=True)
        self.size = 2 * hidden_size

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts [N, T], positions among words [U] with characters [U, L]: [N, size], zero without words."""
        # All occurrences of a word in a batch share a mask.
        vectors = self.dropout(self.words(word, char))  # [U, D]
        return self.lstm.last_states(vectors, text, (text != 0).sum(dim=1))


def positions_of(name: str) -> int | None:
    """Maximum number of tokens of the transformer with this Hub name or folder; None = no limit is configured."""
    from transformers import AutoConfig

    subfolder = SentenceModules.read(name).folder
    try:
        config = AutoConfig.from_pretrained(name, subfolder=subfolder, trust_remote_code=False)
    except (OSError, ValueError):
        return None  # loading the model reports the error
    positions: int | None = getattr(config, "max_position_embeddings", None)
    # RoBERTa and its variants number positions from the padding's id on.
    offset_kinds = ("roberta", "camembert", "mpnet", "longformer")
    if positions is not None and any(kind in config.model_type for kind in offset_kinds):
        positions -= (config.pad_token_id or 0) + 1
    return positions


def transformer_config_of(network: nn.Module) -> PlainDict | None:
    """The configuration of a network's `TransformerEncoder`, for its checkpoint; None where there is none."""
    encoder = next((part for part in network.modules() if isinstance(part, TransformerEncoder)), None)
    if encoder is None:
        return None
    return {**encoder.transformer.config.to_dict(), _MODULES: encoder.published.describe()}


def pooling_of(encoder: nn.Module) -> PlainDict | None:
    """Plain values that the vectors of an encoder depend on, in addition to its weights."""
    return encoder.published.describe() if isinstance(encoder, TransformerEncoder) else None


#: The published modules in the configuration of a checkpoint.
_MODULES = "sentence_modules"

#: Texts that a CPU reads together.
_TEXTS_AT_ONCE = 16


def layers_of(transformer: nn.Module) -> list[nn.Module]:
    """The layers in the outermost lists of a transformer, lowest first."""
    lists = {name: part for name, part in transformer.named_modules() if isinstance(part, nn.ModuleList)}
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return [layer for name in outermost for layer in lists[name]]


def fast_precision(device: torch.device, precision: str | None = None) -> AbstractContextManager[object]:
    """Compute in bfloat16 on a CPU that multiplies it in hardware: a third of the time, cosines of at least .9999.

    A GPU has the precision of the trainer (`trainer.precision`), which is given outside of Lightning's own steps.
    """
    if device.type == "cuda" and precision == "bf16-mixed":
        return torch.autocast("cuda", torch.bfloat16)
    return torch.autocast("cpu", torch.bfloat16, enabled=device.type == "cpu" and _has_bfloat16())


@cache
def _has_bfloat16() -> bool:
    if has := bool(torch.cpu._is_avx512_bf16_supported()):
        log.info("this CPU multiplies bfloat16: transformers encode texts in it")
    return has


class TransformerEncoder(nn.Module):
    """A text's vector as published: the pooled last layer of a pre-trained transformer, or of a static table.

    Args:
        name: Hub name or folder of the transformer.
        config: a checkpoint's, for whose weights a transformer is made (`transformer_config_of`).
        lora_rank: adapters of this rank are trained in place of the transformer.
        has_dense: published layers after the pooling, which were made for single texts, are used.
    """

    def __init__(
        self, name: str, config: PlainDict | None = None, lora_rank: int | None = None, has_dense: bool = True
    ) -> None:
        super().__init__()
        from datamodules.text.token_models import load_model, make_dense, make_model

        if config is not None:
            config = dict(config)
            described = config.pop(_MODULES, None)
            published = SentenceModules() if described is None else SentenceModules.from_plain(described)
            self.transformer = make_model(config, published)
        else:
            published = SentenceModules.read(name)
            try:
                self.transformer = load_model(name, published)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"model.transformer={name!r}: no such model here or on the Hub ({str(error).splitlines()[0]})"
                ) from error
            if self.transformer.config.is_encoder_decoder:
                raise InputError(f"model.transformer={name!r}: has a decoder; name an encoder such as BERT")
            # It is loaded in evaluation mode, without its own dropout, and Lightning does not change modes.
            self.transformer.train()
        # BERT's own pooling layer is unused, and a trained weight without a gradient stops training on several devices.
        if getattr(self.transformer, "pooler", None) is not None:
            self.transformer.pooler.requires_grad_(False)
        if lora_rank is not None:
            add_adapters(self.transformer, lora_rank)
        #: evaluation on a CPU may round to bfloat16, which makes a vector depend on the batch.
        self.is_fast = True
        if not has_dense:
            published = published._replace(dense=(), normalizes=False)
        self.published = published
        size = self.transformer.config.hidden_size
        self.dense = make_dense(name, published, size, has_weights=config is None)
        self.size: int = published.dense[-1].out_features if published.dense else size

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts; arguments and result as in `BiLSTMEncoder.forward`, `char` is not read."""
        if text.device.type != "cpu":
            return self.text_vectors(self.token_states(word, text), text != 0)
        # A CPU reads texts of similar length together: it takes as much time for padding as for tokens.
        lengths = (text != 0).sum(dim=1)
        order = lengths.argsort()
        parts = [torch.zeros(0, self.size)]
        for first in range(0, len(order), _TEXTS_AT_ONCE):
            rows = order[first : first + _TEXTS_AT_ONCE]
            part = text[rows, : max(1, int(lengths[rows[-1]]))]
            # In training, the precision is the trainer's.
            is_fast = self.is_fast and not self.training
            with fast_precision(text.device) if is_fast else nullcontext():
                states = self.token_states(word, part)
            parts.append(self.text_vectors(states.float(), part != 0))
        return torch.cat(parts)[order.argsort()]

    def text_vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        """The vectors [N, size] of texts with these tokens' states [N, T, l], mask [N, T]; zero without tokens."""
        published = self.published
        return text_vectors(states, mask, published.pooling, self.dense, published.normalizes)

    def token_states(self, word: Tensor, text: Tensor, types: Tensor | None = None) -> Tensor:
        """The states [N, T, size] of tokens in the last layer, anything at padding; `types` [N, T] are segments."""
        attended = text != 0
        attended[:, 0] = True  # attention needs a token, also in a text without tokens
        segments = {} if types is None else {"token_type_ids": types}
        output = self.transformer(input_ids=word[text], attention_mask=attended.long(), **segments)
        return output.last_hidden_state


class TransformerTokens(TransformerEncoder):
    """Vectors of tokens in context: the last layer of a pre-trained transformer."""

    def __init__(self, name: str, config: PlainDict | None = None, lora_rank: int | None = None) -> None:
        super().__init__(name, config, lora_rank, has_dense=False)

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts; arguments as in `TransformerEncoder.forward`, result as of `token_states`."""
        return self.token_states(word, text)


class TextDropout(nn.Module):
    """Zeroes the vectors of some training examples: their class must be read off the memories."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, text: Tensor) -> Tensor:
        """Zero some rows of texts [B, d]; the others are not scaled."""
        if not self.training or self.probability == 0:
            return text
        return text * (torch.rand(len(text), 1, device=text.device) >= self.probability)
