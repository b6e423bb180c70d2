"""The mean of the vectors of words and pairs of words, and a linear classifier.

Armand Joulin, Edouard Grave, Piotr Bojanowski, Tomas Mikolov: "Bag of Tricks for Efficient Text Classification", EACL
2017. Pairs share rows of a table by their hash (Section 2.2). The softmax is not hierarchical; any optimizer works.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec, TextBatch
from datamodules.core.errors import InputError
from datamodules.core.types import PlainDict
from zoo.baselines.text_only import TextNetwork, TextOnly
from zoo.layers.bags import TextBag
from zoo.layers.encoders import WordEncoder
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import ReadsWordVectors


class FastTextNetwork(TextNetwork):
    """Figure 1: the mean of the features' vectors."""

    def __init__(self, words: WordEncoder, num_buckets: int, num_classes: int) -> None:
        super().__init__(words.size, num_classes)
        self.bag = TextBag(words, num_buckets)

    @override
    def encode_texts(self, batch: ClassificationBatch | TextBatch) -> Tensor:
        """The mean over words and pairs [B, l]; zero for a text without words."""
        vectors: Tensor = self.bag(batch.word, batch.text)
        return vectors


class FastText(ReadsWordVectors, TextOnly):
    """The paper's classifier; with `num_buckets=0`, the one without bigrams."""

    def __init__(
        self,
        num_buckets: int = 100_000,
        word_size: int = 100,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=5e-3, fused=True),
        **shared: Any,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            num_buckets: rows of the table that pairs of words share by their hash; 0 = words alone.
            word_size: size of the vectors of words and pairs, where the data brings no vectors.
            optimizer: makes the optimizer. The paper's is SGD with a rate that falls to 0.
            **shared: options of `ReadsWordVectors` and `Task`.
        """
        super().__init__(word_size=word_size, optimizer=optimizer, **shared)
        check_sizes(word_size=word_size)
        if num_buckets < 0:
            raise InputError(f"model.num_buckets={num_buckets}: must be 0 (no pairs of words) or more")
        self.num_buckets = num_buckets

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: PlainDict | None
    ) -> FastTextNetwork:
        return FastTextNetwork(self.make_words(spec, word_vectors), self.num_buckets, len(spec.labels))
