"""A bidirectional GRU over the words of a text.

The GRU: Kyunghyun Cho et al.: "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation", EMNLP 2014. Papers on short texts call a classifier on its last states "RNN".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.types import PlainDict
from zoo.baselines.text_only import TextNetwork, TextOnly
from zoo.layers.encoders import WordEncoder
from zoo.layers.gru import AllStatesGRU
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import ReadsWordVectors


class GRUNetwork(TextNetwork):
    """The last states of a GRU in both directions."""

    def __init__(self, words: WordEncoder, hidden_size: int, dropout: float, num_classes: int) -> None:
        super().__init__(2 * hidden_size, num_classes, dropout)
        self.words = words
        self.word_dropout = nn.Dropout(dropout)
        self.gru = AllStatesGRU(words.size, hidden_size, bidirectional=True)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The last forward and the last backward state [B, l]; zero for a text without words."""
        vectors = self.word_dropout(self.words(batch.word, batch.char))  # [U, D]
        lengths = (batch.text != 0).sum(dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            states = self.gru(vectors.float(), batch.text, lengths)  # [B, T, 2, H]
        last = (lengths - 1).clamp(min=0)
        forward = states[torch.arange(len(last), device=last.device), last, 0]
        # The backward GRU ends at the first word.
        return torch.cat([forward, states[:, 0, 1]], dim=1)


class BiGRU(ReadsWordVectors, TextOnly):
    """A linear classifier on the last states of a bidirectional GRU."""

    def __init__(self, hidden_size: int = 100, dropout: float = 0.5, **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hidden_size: state size of one direction.
            dropout: on word vectors and on a text's vector.
            **shared: options of `ReadsWordVectors` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(hidden_size=hidden_size, word_size=self.word_size)
        self.hidden_size, self.dropout = hidden_size, dropout

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> GRUNetwork:
        words = self.make_words(spec, word_vectors)
        return GRUNetwork(words, self.hidden_size, self.dropout, len(spec.labels))
