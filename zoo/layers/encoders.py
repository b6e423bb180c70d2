"""From the distinct words of a batch to one vector a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.core.errors import InputError
from datamodules.text.pooling import Pooling, pool
from zoo.layers.lora import add_adapters
from zoo.layers.lstm import LastStateLSTM
from zoo.layers.row_adam import RowTable


class WordEncoder(RowTable):
    """A word's vector: its row of a table and, if wanted, the last state of an LSTM over its characters.

    It runs once on each distinct word of a batch, so its cost does not grow with the length of the texts.
    """

    def __init__(
        self,
        num_words: int,
        word_size: int,
        num_chars: int = 0,
        char_size: int = 20,
        char_hidden_size: int = 50,
        table: Tensor | None = None,
        train_table: bool = True,
    ) -> None:
        """Make the table and the character LSTM.

        Args:
            num_words: rows of the table; row 0 is padding.
            word_size: columns of the table.
            num_chars: number of characters; 0 switches the character LSTM off.
            char_size: size of a character's vector.
            char_hidden_size: size of the character LSTM's state.
            table: [num_words, word_size] initial values, e.g. GloVe; None draws them.
            train_table: False freezes the table.
        """
        super().__init__()
        if table is None:
            table = torch.empty(num_words, word_size).normal_(std=0.1)
            table[0] = 0
        # The table arrives memory-mapped and read-only when several processes share it: keep it as it is
        # while it is frozen.
        self.table = nn.Parameter(table, requires_grad=train_table)
        self.size = word_size
        self.char_table: nn.Embedding | None = None
        if num_chars:
            self.char_table = nn.Embedding(num_chars, char_size, padding_idx=0)
            self.char_lstm = LastStateLSTM(char_size, char_hidden_size)
            self.size += char_hidden_size

    def forward(self, word: Tensor, char: Tensor) -> Tensor:
        """Encode words.

        Args:
            word: [U] vocabulary ids.
            char: [U, L] character ids, 0 = padding.

        Returns:
            [U, size]; zero for padding (word 0).
        """
        real = (word != 0).unsqueeze(1)
        vectors: Tensor = self.rows(word) * real  # [U, word_size]
        if self.char_table is None:
            return vectors
        spelled = self.char_lstm(self.char_table.weight, char, (char != 0).sum(dim=1))
        return torch.cat([vectors, spelled * real], dim=1)


class BiLSTMEncoder(nn.Module):
    """A text's vector: the last forward and the last backward state of a BiLSTM over its words."""

    def __init__(self, words: WordEncoder, hidden_size: int, dropout: float = 0.0) -> None:
        """Make the BiLSTM.

        Args:
            words: encodes the words.
            hidden_size: state size of one direction.
            dropout: probability of zeroing a component of a word's vector in training; all occurrences of a
                word in a batch share the mask.
        """
        super().__init__()
        self.words = words
        self.dropout = nn.Dropout(dropout)
        self.lstm = LastStateLSTM(words.size, hidden_size, bidirectional=True)
        self.size = 2 * hidden_size

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts.

        Args:
            word: [U] vocabulary ids of the batch's distinct words.
            char: [U, L] their character ids.
            text: [N, T] positions in `word`, 0 = padding.

        Returns:
            [N, size]; zero for a text without words.
        """
        vectors = self.dropout(self.words(word, char))  # [U, D]
        last: Tensor = self.lstm(vectors, text, (text != 0).sum(dim=1))
        return last


def positions_of(name: str) -> int | None:
    """How many tokens a pre-trained transformer can read; None = its configuration sets no limit.

    Args:
        name: Hub name or folder.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError):
        return None  # who loads the model says what is wrong
    positions: int | None = getattr(config, "max_position_embeddings", None)
    # RoBERTa and its kin number positions from behind the padding's id.
    counts_from = ("roberta", "camembert", "mpnet", "longformer")
    if positions is not None and any(kind in config.model_type for kind in counts_from):
        positions -= (config.pad_token_id or 0) + 1
    return positions


def transformer_of(network: nn.Module) -> Any:
    """The pre-trained transformer that a network keeps in an attribute of that name, or a part of it does; or None."""
    parts = (getattr(module, "transformer", None) for module in network.modules())
    return next((part for part in parts if part is not None), None)


class TransformerEncoder(nn.Module):
    """A text's vector: the pooled last layer of a pre-trained transformer."""

    def __init__(
        self,
        name: str,
        pooling: Pooling = "mean",
        config: dict[str, Any] | None = None,
        lora_rank: int | None = None,
    ) -> None:
        """Load the transformer.

        Args:
            name: a Hub name or a local folder.
            pooling: `mean` over the real tokens, or `cls`, the first token.
            config: the transformer's own configuration, from a checkpoint that holds its weights; then
                nothing is loaded from `name`.
            lora_rank: train adapters of this rank in place of the transformer; None = none.
        """
        super().__init__()
        from transformers import AutoConfig, AutoModel

        if config is not None:
            config = dict(config)
            self.transformer = AutoModel.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
        else:
            try:
                self.transformer = AutoModel.from_pretrained(name)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"model.transformer={name!r}: no such model on this machine or the Hub"
                    f" ({str(error).splitlines()[0]})"
                ) from error
            # It comes as for predictions, without its own dropout, and Lightning leaves modes as they are.
            self.transformer.train()
        # BERT's own pooling layer is read by neither kind of pooling here: a trained weight without a gradient
        # stops training on several devices.
        if getattr(self.transformer, "pooler", None) is not None:
            self.transformer.pooler.requires_grad_(False)
        if lora_rank is not None:
            add_adapters(self.transformer, lora_rank)
        self.pooling = pooling
        self.size: int = self.transformer.config.hidden_size

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts; arguments and result as in `BiLSTMEncoder.forward`, `char` is not read."""
        return pool(self.token_states(word, text), text != 0, self.pooling)

    def token_states(self, word: Tensor, text: Tensor) -> Tensor:
        """The tokens' states [N, T, size] in the last layer; anything at padding."""
        attended = text != 0
        attended[:, 0] = True  # attention needs a token, also in a text without tokens
        states: Tensor = self.transformer(
            input_ids=word[text], attention_mask=attended.long()
        ).last_hidden_state
        return states


class TransformerTokens(TransformerEncoder):
    """Vectors of tokens in context: the last layer of a pre-trained transformer."""

    def forward(self, word: Tensor, char: Tensor, text: Tensor) -> Tensor:
        """Encode texts; arguments as in `TransformerEncoder.forward`, result as of `token_states`."""
        return self.token_states(word, text)
