"""A member of the ensemble: a classifier that reads a text, or the memories retrieved for it, in its own way.

A new member is a subclass of `Member` and an entry of `zoo.ensemble.members.MEMBERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from datamodules.core.types import PlainDict
from datamodules.retrieval.base import ExcludedRows
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from zoo.ensemble.outputs import Outputs, Votes
from zoo.layers.kernel_machine import RIDGE
from zoo.tasks.classification.guides import Guides

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Input of a member: a field of `Readings`.
Input: TypeAlias = Literal["texts", "ngrams", "vectors", "published", "bags", "neighbors", "memory", "guides"]

#: Kinds of n-grams, and the name of a classifier.
Pipeline: TypeAlias = tuple[str, str]


class SearchedMemory(NamedTuple):
    """A memory that members search by the texts' vectors."""

    encoded: EncodedMemory
    #: int64 [rows], classes, or the labels of each row [rows, L]; negative for none, C and above for new ones.
    target: Tensor


class Readings(NamedTuple):
    """The inputs of members for n texts; inputs that nobody reads are None."""

    texts: list[str]
    #: TF-IDF vectors of words and n-grams of words [n, V], and those of n-grams of letters where they are read.
    ngrams: list[csr_matrix] | None = None
    #: memories that the retriever returned, at most K per text.
    neighbors: Votes | None = None
    #: float32 [n, l], vectors of the encoder.
    vectors: Tensor | None = None
    #: float32 [n, l], vectors of the encoder before it was tuned; None = it was not.
    published: Tensor | None = None
    #: float32 [n, d], weighted means of word vectors.
    bags: Tensor | None = None
    #: None where there is none to search.
    memory: SearchedMemory | None = None
    #: rows of the memory that each text must not retrieve; None = it may retrieve all.
    excluded: ExcludedRows | None = None
    #: texts of no row that members learn from.
    guides: Guides | None = None

    def select(self, rows: NDArray[np.int64]) -> Readings:
        """The inputs for some of the texts."""
        return self._replace(
            texts=[self.texts[row] for row in rows],
            ngrams=None if self.ngrams is None else [part[rows] for part in self.ngrams],
            neighbors=None if self.neighbors is None else self.neighbors.select(rows),
            excluded=None if self.excluded is None else [self.excluded[row] for row in rows],
            **{name: part[rows] for name, part in self._tensors().items()},
        )

    def known_to(self, learned: Readings) -> Readings:
        """The same inputs as of further texts: without the n-grams that the learned ones lack, of length 1."""
        if self.ngrams is None or learned.ngrams is None or not self.texts:
            return self
        from sklearn.preprocessing import normalize

        counts = [part.getnnz(axis=0) for part in learned.ngrams]
        if learned.guides is not None and learned.guides.ngrams is not None:
            more = [part.getnnz(axis=0) for part in learned.guides.ngrams]
            counts = [own + other for own, other in zip(counts, more, strict=True)]
        known = [part.multiply(own > 0).tocsr() for part, own in zip(self.ngrams, counts, strict=True)]
        return self._replace(ngrams=list(map(normalize, known)))

    def to(self, device: torch.device) -> Readings:
        """The same inputs on a device."""
        neighbors = None if self.neighbors is None else self.neighbors.to(device)
        parts = {name: part.to(device) for name, part in self._tensors().items()}
        return self._replace(neighbors=neighbors, **parts)

    def without_duplicates(self, own_ids: Sequence[str] | None = None) -> Readings:
        """The same inputs; no text retrieves its duplicates or, with own ids, its own row from the memory."""
        if self.memory is None:
            return self
        return self._replace(excluded=self.memory.encoded.memory.opened.excluded_rows(self.texts, own_ids))

    def _tensors(self) -> PlainDict:
        parts = {"vectors": self.vectors, "published": self.published, "bags": self.bags}
        return {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def join(cls, parts: Sequence[Readings]) -> Readings:
        """Consecutive inputs as one, on the CPU; each has the same fields, without n-grams and excluded rows."""
        first, *others = parts
        neighbors = [part.neighbors for part in others if part.neighbors is not None]
        tensors: PlainDict = {
            name: torch.cat([part._tensors()[name].cpu() for part in parts]) for name in first._tensors()
        }
        return first._replace(
            texts=[text for part in parts for text in part.texts],
            neighbors=None if first.neighbors is None else first.neighbors.joined(neighbors),
            **tensors,
        )


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
    #: texts have sets of labels.
    multilabel: bool = False
    #: of the support vector machines: weight of training errors against small weights.
    c: float = 1.0
    #: of the kernel machines: the cost of large weights.
    ridge: float = RIDGE
    #: of the regression that learns from texts without labels, see `SelfTrained`; None = it chooses one in each fit.
    cost: float | None = None
    #: of the reference with n-grams; None = it chooses one in each fit.
    pipeline: Pipeline | None = None

    @property
    def measure(self) -> str:
        """The measure by which rows are scored; see `row_scores`."""
        return "F1" if self.multilabel else "accuracy"


class Member(nn.Module, ABC):
    """A classifier of texts, fitted in one step and without gradients; its fitted values are in its state dict."""

    #: its name in options and checkpoints.
    name: ClassVar[str]
    #: its name in tables.
    title: ClassVar[str]
    #: the inputs that it reads.
    reads: ClassVar[frozenset[Input]]
    #: further inputs that it is fitted on.
    learns_from: ClassVar[frozenset[Input]] = frozenset()
    #: the part of the time of a fit that each further fit takes.
    further: float = 1.0

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        #: those of the sizes that the last fit has chosen, for further fits.
        self.chosen: PlainDict = {}

    @property
    def has_fit(self) -> bool:
        """True for a member with something to fit."""
        return type(self).fit is not Member.fit

    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        """Fit the member to n training texts; each process does it by itself, with the same result.

        `target` has their classes, int64 [n], or sets of labels, [n, C] of 0 and 1; a class may be missing.
        """

    @abstractmethod
    def forward(self, readings: Readings) -> Outputs:
        """Classify texts."""
