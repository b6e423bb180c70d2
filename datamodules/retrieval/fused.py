"""Several retrievers, one list.

A query's words and its meaning find different neighbours, and a row that both find is rarely wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of, is_whole
from datamodules.retrieval.base import Collection, Hits, Retriever, check_search

Method: TypeAlias = Literal["reciprocal_rank", "score"]


@dataclass(frozen=True)
class FusedRanking:
    """What members return, as one list; see `FusedRetriever`."""

    members: tuple[Retriever, ...]
    weights: tuple[float, ...]
    method: Method
    depth: int
    rank_constant: int

    def describe(self) -> dict[str, Any]:
        """Plain values that change whenever the ranking could."""
        return {
            "similarity": "fused",
            # The back end too: the members' indexes lie where it keeps them.
            "members": [{"back end": type(one).__name__, **one.ranking.describe()} for one in self.members],
            "weights": list(self.weights),
            "method": self.method,
            "depth": self.depth,
            **({"rank_constant": self.rank_constant} if self.method == "reciprocal_rank" else {}),
        }


class FusedRetriever(Retriever):
    """Asks several retrievers and fuses their lists.

    Each member gives its best `depth` rows (or k, if that is more). A row's score is the sum, over the
    members that found it, of weight times

    - `reciprocal_rank`: 1 / (rank_constant + rank), rank = 1, 2, ... (Cormack, Clarke and Buettcher 2009).
      Only the order counts, so members with scores of any kind fit together.
    - `score`: s + (1 - s) / depth with s = (score - lowest) / (highest - lowest) within the member's list:
      1 for its best row, 1 / depth for its worst (above 0, as no hit is). s = 1 if all scores are equal.

    Every member has an index of its own; other weights make another memory.

    Args:
        retrievers: the members, two or more, of any kind; an `ElasticsearchRetriever` without `index`.
        method: `reciprocal_rank` or `score`.
        weights: one for each member, above 0; None weighs them alike.
        depth: hits that a member is asked for.
        rank_constant: how little the first ranks stand out, for `reciprocal_rank`.

    Raises:
        InputError: an argument is out of range.
    """

    ranking: FusedRanking

    def __init__(
        self,
        retrievers: list[Retriever],
        method: Method = "reciprocal_rank",
        weights: list[float] | None = None,
        depth: int = 100,
        rank_constant: int = 60,
    ) -> None:
        if len(retrievers) < 2:
            raise InputError(f"retrievers: {len(retrievers)} given; name two or more to fuse")
        for one in retrievers:
            if one.existing_index is not None:
                raise InputError(
                    f"retrievers: the existing index {one.existing_index!r} has no row numbers to fuse by;"
                    " leave `index` out to build one"
                )
        if method not in ("reciprocal_rank", "score"):
            raise InputError(f"method {method!r}: use reciprocal_rank or score")
        if weights is not None and len(weights) != len(retrievers):
            raise InputError(f"weights: {len(weights)} for {len(retrievers)} retrievers; give one for each")
        if weights is not None and not all(0 < weight < math.inf for weight in weights):
            raise InputError(f"weights={weights}: each must be above 0")
        if depth < 1:
            raise InputError(f"depth={depth}: use 1 or more")
        if rank_constant < 0:
            raise InputError(f"rank_constant={rank_constant}: use 0 or more")
        given = [1.0] * len(retrievers) if weights is None else map(float, weights)
        self.retrievers = list(retrievers)
        self.ranking = FusedRanking(tuple(retrievers), tuple(given), method, depth, rank_constant)

    def _init_args(self) -> dict[str, Any]:
        return {
            "retrievers": [one.describe() for one in self.retrievers],
            "method": self.ranking.method,
            "weights": list(self.ranking.weights),
            "depth": self.ranking.depth,
            "rank_constant": self.ranking.rank_constant,
        }

    def index(self, collection: Collection, folder: Path, progress: bool = True) -> None:
        """Build the members' indexes and open them; see `Retriever.index`. Whole ones are not built again."""
        for one, own_folder, own in self._places(folder, collection.fingerprint):
            if is_whole(own_folder, own):
                one.open(own_folder, own)
            else:
                one.index(replace(collection, fingerprint=own), own_folder, progress)

    def add(self, collection: Collection, start_row: int, folder: Path, progress: bool = True) -> None:
        """Let each member build the index of a collection that has grown; see `Retriever.add`."""
        for one, own_folder, own in self._places(folder, collection.fingerprint):
            if not is_whole(own_folder, own):
                one.add(replace(collection, fingerprint=own), start_row, own_folder, progress)

    def open(self, folder: Path, fingerprint: str) -> None:
        """Open the members' indexes; see `Retriever.open`."""
        for one, own_folder, own in self._places(folder, fingerprint):
            one.open(own_folder, own)

    def _places(self, folder: Path, fingerprint: str) -> list[tuple[Retriever, Path, str]]:
        """Each member with its folder and the fingerprint of its index.

        The folders lie beside `folder`, which itself is never made: it alone could not tell whether the
        index of a member that lives on a server is whole.
        """
        return [
            (
                one,
                folder.with_name(f"{folder.name}.{number}"),
                fingerprint_of({"fused": fingerprint, "member": number}),
            )
            for number, one in enumerate(self.retrievers)
        ]

    def close(self) -> None:
        """Close the members; `open` may follow."""
        for one in self.retrievers:
            one.close()

    def search(self, texts: Sequence[str], k: int, exclude: Sequence[Sequence[int]] | None = None) -> Hits:
        """The best k rows of the fused lists; see `Retriever.search`."""
        check_search(texts, k, exclude)
        ranking = self.ranking
        depth = max(ranking.depth, k)
        lists = [one.search(texts, depth, exclude) for one in self.retrievers]
        if ranking.method == "reciprocal_rank":
            worth = [_by_rank(hits, ranking.rank_constant) for hits in lists]
        else:
            worth = [_by_score(hits) for hits in lists]
        weighted = [weight * one for weight, one in zip(ranking.weights, worth, strict=True)]
        return _best(np.hstack([hits.rows for hits in lists]), np.hstack(weighted), k)


def _by_rank(hits: Hits, rank_constant: int) -> NDArray[np.float64]:
    ranks = np.arange(1, hits.rows.shape[1] + 1)
    return np.broadcast_to(1 / (rank_constant + ranks), hits.rows.shape)


def _by_score(hits: Hits) -> NDArray[np.float64]:
    """[n, depth]; what stands where there is no hit is not read."""
    found = hits.rows >= 0
    scores = hits.scores.astype(np.float64)
    highest = scores.max(axis=1, keepdims=True)
    lowest = np.where(found, scores, np.inf).min(axis=1, keepdims=True)
    spread = highest - lowest
    share = np.divide(scores - lowest, spread, out=np.ones_like(scores), where=spread > 0)
    worth: NDArray[np.float64] = share + (1 - share) / scores.shape[1]
    return worth


def _best(rows: NDArray[np.int32], worth: NDArray[np.float64], k: int) -> Hits:
    """Sum what each row [n, all hits] is worth to each query, and take the best k."""
    query, place = np.nonzero(rows >= 0)
    # A query and a row as one number: ascending, they stand query by query in row order.
    pairs, inverse = np.unique(
        query.astype(np.int64) << 32 | rows[query, place].astype(np.int64), return_inverse=True
    )
    # Summed in double precision, compared as returned: members in another order make the same ties.
    scores = np.bincount(inverse, worth[query, place], len(pairs)).astype(np.float32)
    of_query = pairs >> 32
    order = np.lexsort((-scores, of_query))  # stable: equal scores stay in row order
    of_query = of_query[order]
    rank = np.arange(len(order)) - np.searchsorted(of_query, of_query)
    kept = rank < k
    hits = Hits.none(len(rows), k)
    hits.rows[of_query[kept], rank[kept]] = (pairs & (2**32 - 1))[order][kept]
    hits.scores[of_query[kept], rank[kept]] = scores[order][kept]
    return hits
