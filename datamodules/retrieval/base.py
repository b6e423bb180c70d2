"""The interface of retrievers, and the lexical ranking that two of them share: Lucene's, with its rounding."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, override

from datamodules.core import storage
from datamodules.core.classes import option_defaults
from datamodules.core.errors import InputError
from datamodules.core.ragged import offsets_of
from datamodules.core.types import NotNegative, PlainDict, Positive, Share, check_fields, mapped
from datamodules.corpora.rows import Rows

#: The arrays of an index.
Index = TypeVar("Index")
Similarity: TypeAlias = Literal["BM25", "LMDirichlet"]
#: For each query, the rows that it must not retrieve.
ExcludedRows: TypeAlias = "Sequence[Sequence[int] | NDArray[np.int32]]"
AnalyzerName: TypeAlias = Literal["standard", "english", "cjk"]

#: The number of different terms of a query that are used, because servers refuse long queries.
MAX_QUERY_TERMS = 512
#: The largest number of hits for a query: the limit of Elasticsearch.
MOST_HITS = 10_000
#: Largest row number in a key, see `Hits.of_keys`.
LAST_ROW = 2**32 - 1


@dataclass(frozen=True)
class Ranking:
    """A lexical similarity with its parameters, and the analyzer; see `EmbeddedRetriever`."""

    similarity: Similarity = "BM25"
    analyzer: AnalyzerName = "standard"
    k1: NotNegative = 1.2
    b: Share = 0.75
    mu: Positive = 2000.0

    def __post_init__(self) -> None:
        check_fields(self)

    def describe(self) -> dict[str, str | float]:
        """Return the fields that affect the ranking."""
        unused = ("mu",) if self.similarity == "BM25" else ("k1", "b")
        return {name: value for name, value in asdict(self).items() if name not in unused}


class Hits(NamedTuple):
    """The best rows for each of n queries, best first; equal scores in row order."""

    #: int32 [n, k]: row numbers of the collection, -1 where there are fewer than k hits.
    rows: NDArray[np.int32]
    #: float32 [n, k]: scores, 0 where there is no hit.
    scores: NDArray[np.float32]

    @classmethod
    def none(cls, n: int, k: int) -> Hits:
        """Return n queries without hits."""
        return cls(np.full((n, k), -1, np.int32), np.zeros((n, k), np.float32))

    @classmethod
    def of_keys(cls, keys: NDArray[np.int64]) -> Hits:
        """Return the hits with these keys [n, k]; key 0 is no hit.

        A key consists of the bits of the score, whose order is that of positive scores, and below them `LAST_ROW` -
        row. A better hit has a larger key, and equal scores are in row order.
        """
        # In 32 bits, LAST_ROW - row is ~row; so the row of key 0 is -1.
        return cls((~keys).astype(np.int32), (keys >> 32).astype(np.int32).view(np.float32))


class Retriever(ABC):
    """Ranks the texts of a table for query texts.

    `search` and `update` need an index, which `index` builds and `open` opens; its fingerprint identifies the rows and
    the ranking. Your own subclass works like the built-in ones after `zoo --import MODULE`.
    """

    #: name of a user's index, which is searched and never written to; None for an own index.
    existing_index: str | None = None
    #: the members of a retriever that combines several.
    retrievers: Sequence[Retriever] = ()
    #: options that name a server or hold credentials: no description has them.
    local_options: frozenset[str] = frozenset()
    #: True if a search needs a server.
    is_on_server: bool = False
    #: the constructor's arguments by name, defaults included.
    options: PlainDict

    def __new__(cls, *arguments: object, **options: object) -> Self:
        """Keep the options, for `describe`."""
        retriever, defaults = super().__new__(cls), option_defaults(cls)
        given = {name: value for name, value in defaults.items() if value is not Parameter.empty}
        retriever.options = given | dict(zip(defaults, arguments, strict=False)) | options
        return retriever

    def describe(self) -> PlainDict:
        """Return `class_path` and `init_args`, without `local_options`, for `make_retriever`; members are described."""
        class_path = f"{type(self).__module__}.{type(self).__name__}"
        # A subclass may give the ranking other options than its own.
        options = self.options | (asdict(self.ranking) if hasattr(self, "ranking") else {})
        described = {name: options[name] for name in self.options if name not in self.local_options}
        described = mapped(lambda each: each.describe() if isinstance(each, Retriever) else each, described)
        return {"class_path": class_path, "init_args": described}

    @abstractmethod
    def describe_ranking(self) -> PlainDict:
        """Return plain values that change whenever the order or the scores of hits could."""

    @abstractmethod
    def index(self, rows: Rows, fingerprint: str, folder: Path) -> None:
        """Build the index of a table, with its files in the folder, and open it; resume an interrupted build."""

    @abstractmethod
    def open(self, folder: Path, fingerprint: str) -> None:
        """Open an index; raise an `InputError` if it is missing, unfinished, damaged or of other rows."""

    def update(self, rows: Rows, fingerprint: str, known: NDArray[np.int64], folder: Path) -> None:
        """Build the index of a table that has some texts of the open index, which stays unchanged.

        `known` [n] has the row of each text in the open index, -1 for a new text; texts of both keep their order.
        Subclasses may process only the new texts; the result ranks as if `index` had built it.
        """
        self.index(rows, fingerprint, folder)

    def without_index(self) -> Self:
        """Return a retriever with the same options, encoder and connection that opens an index of its own."""
        retriever = copy(self)
        retriever.retrievers = [member.without_index() for member in self.retrievers]
        return retriever

    def delete(self, folder: Path, fingerprint: str) -> None:
        """Delete an index on a server, if there is one, which is not the open one; files go with their version."""
        return

    def use_scratch(self, name: str) -> None:
        """Give indexes on a server that are made from now on names of their own; the open one stays open."""
        for member in self.retrievers:
            member.use_scratch(name)

    def delete_scratch(self, name: str) -> None:
        """Delete all indexes on a server that were made after `use_scratch`, by any retriever and process."""
        for member in self.retrievers:
            member.delete_scratch(name)

    @abstractmethod
    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """Return at most k hits for each of n query texts; `exclude` has n lists of rows that are not returned."""

    def close(self) -> None:
        """Release files and connections; `open` may follow."""
        for member in self.retrievers:
            member.close()


class FolderRetriever(Retriever, Generic[Index]):
    """Builds an index in a folder, completely or not at all, and maps its files."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._source: tuple[Path, str] | None = None
        self._index: Index | None = None

    @abstractmethod
    def _build(self, texts: Sequence[str], folder: Path, old: tuple[Index, NDArray[np.int64]] | None) -> None:
        """Write the index of the texts into an empty folder; `old` is an index and, for each text, its row or -1."""

    @abstractmethod
    def _map(self, folder: Path) -> Index:
        """Map the files of a complete folder."""

    def index(self, rows: Rows, fingerprint: str, folder: Path) -> None:
        """See `Retriever.index`."""
        self._forget()
        with storage.lock(folder), storage.new_folder(folder, fingerprint) as partial:
            self._build(rows.texts, partial, None)
        self.open(folder, fingerprint)

    def update(self, rows: Rows, fingerprint: str, known: NDArray[np.int64], folder: Path) -> None:
        """See `Retriever.update`."""
        old = self._opened()
        with storage.lock(folder), storage.new_folder(folder, fingerprint) as partial:
            self._build(rows.texts, partial, (old, known))

    def open(self, folder: Path, fingerprint: str) -> None:
        """See `Retriever.open`."""
        self._forget()
        storage.check_folder(folder, fingerprint, contents=True)
        self._index = self._map(folder)
        self._source = folder, fingerprint

    def _opened(self) -> Index:
        if self._index is None:
            if self._source is None:
                raise InputError("the retriever has no index: call index() or open() first")
            # Unpickled: the process that opened the index has compared the checksums.
            storage.check_folder(*self._source)
            self._index = self._map(self._source[0])
        return self._index

    def close(self) -> None:
        """See `Retriever.close`."""
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_index": None}


class TermRetriever(Retriever):
    """A retriever that ranks by terms; every back end has these options, and the same order of hits.

    Args:
        similarity: `BM25` or `LMDirichlet` (Dirichlet-smoothed query likelihood).
        analyzer: `standard` (UAX #29 words, lower case), `english` (also stop words and Porter's stemmer) or `cjk`
            (bigrams of Chinese, Japanese and Korean characters).
        k1: saturation of the term frequency, for BM25.
        b: weight of the document length, for BM25.
        mu: pseudo-count in words, for LMDirichlet.
    """

    ranking: Ranking
    _has_warned = False

    def __init__(
        self,
        similarity: Similarity = "BM25",
        analyzer: AnalyzerName = "standard",
        k1: float = 1.2,
        b: float = 0.75,
        mu: float = 2000.0,
        **back_end: Any,
    ) -> None:
        self.ranking = Ranking(similarity, analyzer, k1, b, mu)
        super().__init__(**back_end)

    @override
    def describe_ranking(self) -> PlainDict:
        return self.ranking.describe()

    def warn_of_long_query(self) -> None:
        """Warn once that the last terms of a query are not used."""
        if not self._has_warned:
            self._has_warned = True
            problem = f"a query has more than {MAX_QUERY_TERMS} different terms"
            warnings.warn(f"{problem}: only the first {MAX_QUERY_TERMS} are used", stacklevel=4)


def check_search(texts: Sequence[str], k: int, exclude: ExcludedRows | None) -> None:
    """Refuse arguments of `Retriever.search` that do not fit together."""
    if k < 0:
        raise InputError(f"k={k}: must be 0 or more")
    if exclude is not None and len(exclude) != len(texts):
        raise InputError(f"exclude has {len(exclude)} lists for {len(texts)} texts: give one a text")


def joined_rows(exclude: ExcludedRows | None, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the excluded rows of each of n queries begin, int64 [n + 1], and all of these rows."""
    if exclude is None or n == 0:
        return np.zeros(n + 1, np.int64), np.empty(0, np.int64)
    excluded = [np.asarray(rows, np.int64) for rows in exclude]
    return offsets_of([len(rows) for rows in excluded]), np.concatenate(excluded)
