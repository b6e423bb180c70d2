"""A bidirectional GRU over the words of a text.

The GRU is of Kyunghyun Cho et al.: "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation", EMNLP 2014; papers on short texts call a classifier on its last states "RNN".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from zoo.baselines.text_only import TextNetwork, TextOnly
from zoo.layers.encoders import WordEncoder
from zoo.layers.gru import AllStatesGRU
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import WordVectors


class GRUNetwork(TextNetwork):
    """Words, both directions, the last state of each."""

    def __init__(self, words: WordEncoder, options: Any, num_classes: int) -> None:
        """Make the parts.

        Args:
            words: vectors of words.
            options: of `BiGRU`.
            num_classes: C.
        """
        super().__init__(2 * options.hidden_size, num_classes, options.dropout)
        self.words = words
        self.word_dropout = nn.Dropout(options.dropout)
        self.gru = AllStatesGRU(words.size, options.hidden_size, bidirectional=True)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The last forward and the last backward state [B, l]; zero for a text without words."""
        vectors = self.word_dropout(self.words(batch.word, batch.char))  # [U, D]
        lengths = (batch.text != 0).sum(dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            states = self.gru(vectors.float(), batch.text, lengths)  # [B, T, 2, H]
        last = (lengths - 1).clamp(min=0)
        forward = states[torch.arange(len(last), device=last.device), last, 0]
        # The backward GRU ends at the first word.
        return torch.cat([forward, states[:, 0, 1]], dim=1)


class BiGRU(WordVectors, TextOnly):
    """A linear classifier on the last states of a bidirectional GRU.

    Example:
        >>> model = BiGRU(hidden_size=100)
    """

    paper = "Cho et al.: Learning Phrase Representations using RNN Encoder-Decoder (2014)"

    def __init__(self, hidden_size: int = 100, dropout: float = 0.5, **shared: Any) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            hidden_size: state size of one direction.
            dropout: on word vectors and on a text's vector.
            **shared: options of `WordVectors` and `Task`.
        """
        super().__init__(**shared)
        check_sizes(self.options, "hidden_size", "word_size")

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> GRUNetwork:
        return GRUNetwork(self.make_words(spec, word_vectors), self.options, len(spec.labels))
