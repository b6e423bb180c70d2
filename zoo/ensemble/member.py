"""A member of the ensemble: a classifier that reads a text, or the memories retrieved for it, in its own way.

A new member is a subclass of `Member` and an entry of `zoo.ensemble.members.MEMBERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from datamodules.retrieval.base import ExcludedRows
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.outputs import Outputs, Votes
from zoo.layers.kernel_machine import RIDGE

#: Input of a member. `memory` stands for a search of the memory by vectors; the others are fields of `Readings`.
Input: TypeAlias = Literal["texts", "vectors", "bags", "neighbors", "memory"]


class Readings(NamedTuple):
    """The inputs of members for n texts; inputs that nobody reads are None."""

    texts: list[str]
    #: memories that the retriever returned, at most K per text.
    neighbors: Votes | None = None
    #: float32 [n, l], vectors of the encoder.
    vectors: Tensor | None = None
    #: float32 [n, C], scores of the classifier that was trained with the encoder.
    logits: Tensor | None = None
    #: float32 [n, d], weighted means of word vectors.
    bags: Tensor | None = None
    #: rows of the memory that each text must not retrieve; None = it may retrieve all.
    excluded: ExcludedRows | None = None

    def select(self, rows: NDArray[np.int64]) -> Readings:
        """The inputs for some of the texts."""
        texts = [self.texts[row] for row in rows]
        neighbors = None if self.neighbors is None else self.neighbors.select(rows)
        vectors, logits, bags = (None if part is None else part[rows] for part in self._tensors())
        excluded = None if self.excluded is None else [self.excluded[row] for row in rows]
        return Readings(texts, neighbors, vectors, logits, bags, excluded)

    def to(self, device: torch.device) -> Readings:
        """The same inputs on a device."""
        neighbors = None if self.neighbors is None else self.neighbors.to(device)
        vectors, logits, bags = (None if part is None else part.to(device) for part in self._tensors())
        return Readings(self.texts, neighbors, vectors, logits, bags, self.excluded)

    def _tensors(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.vectors, self.logits, self.bags

    @classmethod
    def join(cls, parts: Sequence[Readings]) -> Readings:
        """Consecutive inputs as one, on the CPU; each has the same fields, without excluded rows."""
        texts = [text for part in parts for text in part.texts]
        neighbors = [part.neighbors for part in parts if part.neighbors is not None]
        vectors, logits, bags = (
            torch.cat([tensor.cpu() for tensor in tensors if tensor is not None])
            if tensors[0] is not None
            else None
            for tensors in zip(*(part._tensors() for part in parts), strict=True)
        )
        return cls(texts, Votes.join(neighbors) if neighbors else None, vectors, logits, bags)


class Sizes(NamedTuple):
    """The sizes that members are made with, and their options."""

    #: C.
    num_classes: int
    #: K.
    num_memories: int
    #: l; 0 without an encoder.
    vector_size: int
    #: d; 0 without bags.
    bag_size: int
    #: whether the encoder is trained, together with a classifier.
    trains_encoder: bool
    #: words of the longest n-gram of words.
    max_ngram: int
    #: letters of the longest n-gram of letters; 0 = none.
    max_letters: int
    #: of the lexical member: weight of training errors against small weights.
    c: float
    #: of the kernel machines: the cost of large weights.
    ridge: float = RIDGE


class Member(nn.Module, ABC):
    """A classifier of texts, fitted in one step and without gradients; its fitted values are in its state dict."""

    #: its name in options and checkpoints.
    name: ClassVar[str]
    #: its name in tables.
    title: ClassVar[str]
    #: the inputs that it reads.
    reads: ClassVar[frozenset[Input]]

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    @property
    def fitted_on(self) -> frozenset[Input]:
        """The inputs that `fit` reads."""
        return self.reads

    @abstractmethod
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        """Fit the member to n training texts; each process does it by itself, with the same result.

        `target` has their classes, int64 [n]; a class may be missing.
        """

    @abstractmethod
    def forward(self, readings: Readings) -> Outputs:
        """Classify texts."""

    def search(self, memory: EncodedMemory | None, target: Tensor) -> None:
        """Use a memory, or None, for `memory` inputs.

        `target` has the classes of its rows, int64; negative: none, C and above: new ones.
        """
