"""Several retrievers whose hits are fused into one list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of, is_whole
from datamodules.core.types import PlainDict, Size, check_value
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import ExcludedRows, Hits, Retriever, check_search
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.embedded.retriever import EmbeddedRetriever

Method: TypeAlias = Literal["reciprocal_rank", "score"]

#: Of reciprocal ranks; the larger it is, the less the first ranks stand out.
RANK_CONSTANT = 60


class FusedRetriever(Retriever):
    """Searches with several retrievers and fuses their hits.

    The score of a row is the sum, over the members that return it, of the member's weight times

    - `reciprocal_rank`: 1 / (60 + rank), rank = 1, 2, ... (Cormack, Clarke and Buettcher 2009).
    - `score`: s + (1 - s) / depth with s = (score - lowest) / (highest - lowest) of the member's list; 1 if all equal.

    Args:
        retrievers: two or more members of any kind; an `ElasticsearchRetriever` without `index`. With an
            `encoder`, None is an `EmbeddedRetriever`.
        method: `reciprocal_rank` or `score`.
        weights: a positive weight for each member; None weights all equally.
        depth: the number of hits that each member returns (or k, if that is more).
        encoder: of a `DenseRetriever` that is added as the last member.
    """

    def __init__(
        self,
        retrievers: list[Retriever] | None = None,
        method: Method = "reciprocal_rank",
        weights: list[float] | None = None,
        depth: int = 100,
        encoder: str | None = None,
    ) -> None:
        retrievers = list(retrievers or ())
        if encoder is not None:
            retrievers = [*(retrievers or [EmbeddedRetriever()]), DenseRetriever(encoder)]
        if len(retrievers) < 2:
            raise InputError(f"retrievers: {len(retrievers)} given; name two or more to fuse")
        for member in retrievers:
            if member.existing_index is not None:
                problem = f"the index {member.existing_index!r} has no row numbers"
                raise InputError(f"retrievers: {problem}; omit `index` to build one")
        self.retrievers = tuple(retrievers)
        self.is_on_server = any(member.is_on_server for member in retrievers)
        self.method, self.depth = method, depth
        self.weights = [1.0] * len(retrievers) if weights is None else list(map(float, weights))
        check_value("method", method, Method)
        check_value("depth", depth, Size)
        if len(self.weights) != len(retrievers):
            raise InputError(f"weights: {len(self.weights)} for {len(retrievers)} retrievers; give one each")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise InputError(f"weights={self.weights}: each must be above 0")
        self.options = {"retrievers": retrievers, "method": method, "weights": self.weights, "depth": depth}

    @override
    def describe_ranking(self) -> PlainDict:
        # The class decides where the index of a member is stored.
        members = [{"back end": type(each).__name__, **each.describe_ranking()} for each in self.retrievers]
        options = {"method": self.method, "weights": self.weights, "depth": self.depth}
        return {"similarity": "fused", "members": members, **options}

    def index(self, rows: Rows, fingerprint: str, folder: Path) -> None:
        """Build the members' indexes and open them; see `Retriever.index`. Complete ones are only opened."""
        for member, own_folder, own_fingerprint in self._parts(folder, fingerprint):
            if is_whole(own_folder, own_fingerprint):
                member.open(own_folder, own_fingerprint)
            else:
                member.index(rows, own_fingerprint, own_folder)

    def update(self, rows: Rows, fingerprint: str, known: NDArray[np.int64], folder: Path) -> None:
        """Build each member's index of a table that has changed; see `Retriever.update`."""
        for member, own_folder, own_fingerprint in self._parts(folder, fingerprint):
            if not is_whole(own_folder, own_fingerprint):
                member.update(rows, own_fingerprint, known, own_folder)

    def delete(self, folder: Path, fingerprint: str) -> None:
        """Delete the members' indexes; see `Retriever.delete`."""
        for member, own_folder, own_fingerprint in self._parts(folder, fingerprint):
            member.delete(own_folder, own_fingerprint)

    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the members' indexes; see `Retriever.open`."""
        for member, own_folder, own_fingerprint in self._parts(folder, fingerprint):
            member.open(own_folder, own_fingerprint)

    def _parts(self, folder: Path, fingerprint: str) -> Iterator[tuple[Retriever, Path, str]]:
        """Yield each member with the folder and the fingerprint of its index."""
        # `folder` itself is never made: it would not show whether the index of a member on a server is complete.
        for number, member in enumerate(self.retrievers):
            own_fingerprint = fingerprint_of({"fused": fingerprint, "member": number})
            yield member, folder.with_name(f"{folder.name}.{number}"), own_fingerprint

    def search(self, texts: Sequence[str], k: int, exclude: ExcludedRows | None = None) -> Hits:
        """Return the best k rows of the fused lists; see `Retriever.search`."""
        check_search(texts, k, exclude)
        lists = [member.search(texts, max(self.depth, k), exclude) for member in self.retrievers]
        shares = [weight * self._shares(hits) for weight, hits in zip(self.weights, lists, strict=True)]
        return _summed(np.hstack([hits.rows for hits in lists]), np.hstack(shares), k)

    def _shares(self, hits: Hits) -> NDArray[np.float64]:
        """Return the unweighted contributions of a list [n, depth]; arbitrary where there is no hit."""
        if self.method == "reciprocal_rank":
            ranks = np.arange(1, hits.rows.shape[1] + 1)
            return np.broadcast_to(1 / (RANK_CONSTANT + ranks), hits.rows.shape)
        scores, is_hit = hits.scores.astype(np.float64), hits.rows >= 0
        lowest = np.where(is_hit, scores, np.inf).min(axis=1, keepdims=True)
        spread = np.where(is_hit, scores, -np.inf).max(axis=1, keepdims=True) - lowest
        share = np.divide(scores - lowest, spread, out=np.ones_like(scores), where=spread > 0)
        return np.asarray(share + (1 - share) / scores.shape[1])


def _summed(rows: NDArray[np.int32], shares: NDArray[np.float64], k: int) -> Hits:
    """Sum the shares [n, all hits] of each row for each query, and return the best k rows."""
    query, column = np.nonzero(rows >= 0)
    # Query and row in one number: in ascending order, the queries follow one another, each in row order.
    pairs, inverse = np.unique(query << 32 | rows[query, column], return_inverse=True)
    # Summed in double precision and rounded: ties do not depend on the order of the members.
    scores = np.bincount(inverse, shares[query, column], len(pairs)).astype(np.float32)
    order = np.lexsort((-scores, pairs >> 32))  # stable: equal scores stay in row order
    query = pairs[order] >> 32
    rank = np.arange(len(order)) - np.searchsorted(query, query)
    best = rank < k
    hits = Hits.none(len(rows), k)
    hits.rows[query[best], rank[best]] = (pairs & (2**32 - 1))[order][best]
    hits.scores[query[best], rank[best]] = scores[order][best]
    return hits
