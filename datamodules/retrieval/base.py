"""What a retriever is: a ranking that two back ends compute alike.

The ranking is Lucene's, its one-byte document lengths included, so an embedded index and an Elasticsearch
server return the same rows in the same order with the same scores. Retrievers that compare vectors or fuse
several lists rank in ways of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError

Similarity: TypeAlias = Literal["BM25", "LMDirichlet"]
Analyzer: TypeAlias = Literal["standard", "english", "cjk"]

#: A query is cut to this many different terms, by every back end alike: servers refuse long queries.
MAX_QUERY_TERMS = 512
#: Memories or candidates that a memory is asked for at most: as many as Elasticsearch gives.
MOST_HITS = 10_000


@dataclass(frozen=True)
class Ranking:
    """A similarity with its parameters, and the analyzer that makes terms of texts.

    Attributes:
        similarity: `BM25` or `LMDirichlet` (Dirichlet-smoothed query likelihood).
        analyzer: `standard` (UAX#29 words, lower case), `english` (also stop words and Porter's stemmer)
            or `cjk` (bigrams of Chinese, Japanese and Korean characters).
        k1: BM25's saturation of the term frequency.
        b: BM25's weight of the document length.
        mu: LMDirichlet's pseudo-count, in words.
    """

    similarity: Similarity = "BM25"
    analyzer: Analyzer = "standard"
    k1: float = 1.2
    b: float = 0.75
    mu: float = 2000.0

    def __post_init__(self) -> None:
        if self.similarity not in ("BM25", "LMDirichlet"):
            raise InputError(f"similarity {self.similarity!r}: use BM25 or LMDirichlet")
        if self.analyzer not in ("standard", "english", "cjk"):
            raise InputError(f"analyzer {self.analyzer!r}: use standard, english or cjk")
        if self.k1 < 0 or not 0 <= self.b <= 1:
            raise InputError(f"k1={self.k1}, b={self.b}: k1 must be >= 0 and b in 0..1")
        if self.mu <= 0:
            raise InputError(f"mu={self.mu}: must be positive")

    def describe(self) -> dict[str, str | float]:
        """Only what changes the ranking: BM25 has no mu and LMDirichlet neither k1 nor b."""
        values = asdict(self)
        for name in ("mu",) if self.similarity == "BM25" else ("k1", "b"):
            del values[name]
        return values


class AnyRanking(Protocol):
    """What a retriever ranks by: terms (`Ranking`), vectors, or several retrievers together."""

    def describe(self) -> dict[str, Any]:
        """Plain values that change whenever the order or the scores of hits could: for fingerprints."""


class Hits(NamedTuple):
    """The best rows for each of n queries, best first; equal scores in row order."""

    #: int32 [n, k]: row numbers of the collection, -1 where there are fewer than k hits.
    rows: NDArray[np.int32]
    #: float32 [n, k]: their scores, 0 where there is no hit.
    scores: NDArray[np.float32]

    @classmethod
    def none(cls, n: int, k: int) -> Hits:
        """Room for the hits of n queries."""
        return cls(np.full((n, k), -1, np.int32), np.zeros((n, k), np.float32))


@dataclass(frozen=True)
class Collection:
    """The texts that a retriever ranks; their positions are the row numbers of its hits.

    Attributes:
        texts: n texts.
        fingerprint: identifies the texts and the ranking; stored with their index.
        ids: an id for each text, and
        labels: a label for each, for back ends whose index other programs can read; not needed to search.

    Raises:
        InputError: not as many ids or labels as texts.
    """

    texts: Sequence[str]
    fingerprint: str
    ids: Sequence[str] | None = None
    labels: Sequence[str | None] | None = None

    def __post_init__(self) -> None:
        for what, values in (("ids", self.ids), ("labels", self.labels)):
            if values is not None and len(values) != len(self.texts):
                raise InputError(
                    f"{what}: {len(values)} values for {len(self.texts)} texts; give one for each"
                )


class Retriever(ABC):
    """Ranks the rows of one collection of texts against query texts.

    An object starts as a specification (what the user configures). `index` builds an index of a collection
    or `open` opens one that is there; after either, `search` answers, and `add` builds the index of a larger
    collection.
    """

    ranking: AnyRanking
    #: an index of the user's that is searched as it is, and never written to; None = an index of our own.
    existing_index: str | None = None

    def describe(self) -> dict[str, Any]:
        """`class_path` and `init_args` that make this specification again: plain values without secrets."""
        return {
            "class_path": f"{type(self).__module__}.{type(self).__name__}",
            "init_args": self._init_args(),
        }

    @abstractmethod
    def _init_args(self) -> dict[str, Any]:
        """The arguments for `describe`."""

    @abstractmethod
    def index(self, collection: Collection, folder: Path, progress: bool = True) -> None:
        """Build the index of a collection and open it. What was half built before is done anew or resumed.

        Args:
            collection: the texts.
            folder: a folder of the memory's own, for back ends that keep files.
            progress: show a progress bar on standard error.

        Raises:
            InputError: the folder can't be written, the disk is full, or a server or an encoder isn't there.
        """

    @abstractmethod
    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the index that `index` built of the collection with this fingerprint in this folder.

        Raises:
            InputError: no such index, one of another fingerprint, a half-built or damaged one.
        """

    def add(self, collection: Collection, start_row: int, folder: Path, progress: bool = True) -> None:
        """Build the index of a collection that has grown, beside the open one; `open` opens it.

        It is the index that `index` builds of the same texts, so it ranks alike. The old index is not
        changed: if `add` is interrupted, it is whole, and its rankings can always be had again.

        A back end that can do with the new texts alone does so; this one builds the whole index.

        Args:
            collection: the grown one.
            start_row: how many of its texts the open collection has; they come first.
            folder: of the new index, see `index`.
            progress: show a progress bar on standard error.

        Raises:
            InputError: as `index`; no index is open, or it hasn't `start_row` texts.
        """
        self.index(collection, folder, progress)

    @abstractmethod
    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """Rank the collection for each query text.

        Args:
            texts: n queries. An empty text, or one without a term of the collection, has no hits.
            k: how many hits a query gets at most.
            exclude: n lists of row numbers that the query must not get (its own row and copies of it).

        Raises:
            InputError: arguments out of range, no index is open, or one that was open has gone.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections; `open` may follow."""


def check_search(texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None) -> None:
    """Refuse arguments of `Retriever.search` that don't fit together.

    Raises:
        InputError: k is negative, or there isn't a list to exclude for each text.
    """
    if k < 0:
        raise InputError(f"k={k}: must be 0 or more")
    if exclude is not None and len(exclude) != len(texts):
        raise InputError(f"exclude has {len(exclude)} lists for {len(texts)} texts: give one a text")
