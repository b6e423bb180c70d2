"""The mean of the vectors of words and pairs of words, and a linear classifier.

Armand Joulin, Edouard Grave, Piotr Bojanowski, Tomas Mikolov: "Bag of Tricks for Efficient Text Classification",
EACL 2017. Pairs share rows of a table by their hash (Section 2.2). The softmax is a full one, the optimizer any.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor
from typing_extensions import override

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from zoo.baselines.text_only import TextNetwork, TextOnly
from zoo.layers.bags import TextBag
from zoo.layers.encoders import WordEncoder
from zoo.tasks.base import check_sizes
from zoo.tasks.encoders import WordVectors


class FastTextNetwork(TextNetwork):
    """Figure 1: the mean of the features' vectors."""

    def __init__(self, words: WordEncoder, num_buckets: int, num_classes: int) -> None:
        """Make the tables.

        Args:
            words: vectors of words.
            num_buckets: rows that pairs of words share; 0 = pairs are not read.
            num_classes: C.
        """
        super().__init__(words.size, num_classes)
        self.bag = TextBag(words, num_buckets)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The mean over words and pairs [B, l]; zero for a text without words."""
        vectors: Tensor = self.bag(batch.word, batch.text)
        return vectors


class FastText(WordVectors, TextOnly):
    """The paper's classifier; `num_buckets=0` is the one without bigrams.

    Example:
        >>> model = FastText(num_buckets=100_000)
    """

    paper = "Joulin, Grave, Bojanowski, Mikolov: Bag of Tricks for Efficient Text Classification (2017)"

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
            word_size: size of the vectors of words and pairs; that of the words where the data brings vectors.
            optimizer: makes the optimizer. The paper's is SGD with a rate that falls to 0.
            **shared: options of `WordVectors` and `Task`.
        """
        super().__init__(word_size=word_size, optimizer=optimizer, **shared)
        check_sizes(self.options, "word_size")
        if num_buckets < 0:
            raise InputError(f"model.num_buckets={num_buckets}: must be 0 (no pairs of words) or more")

    @override
    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> FastTextNetwork:
        words = self.make_words(spec, word_vectors)
        return FastTextNetwork(words, self.options.num_buckets, len(spec.labels))
