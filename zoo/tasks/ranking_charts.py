"""A chart of the ranks of relevant texts, for models that rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from callbacks.chart import Chart

#: Ranks that the chart shows.
MOST_RANKS = 50


def hits_by_rank(ranked: Sequence[Sequence[float]], relevant: Sequence[int]) -> Iterator[Chart]:
    """The shares of queries with a relevant text, and of the relevant texts, up to each rank, from ranked grades."""
    known = [(grades, total) for grades, total in zip(ranked, relevant, strict=True) if total]
    ranks = min(MOST_RANKS, max((len(grades) for grades, _ in known), default=0))
    if not ranks:
        return
    hits = np.zeros((len(known), ranks), np.int64)
    for row, (grades, _) in enumerate(known):
        hits[row, : len(grades)] = np.asarray(grades[:ranks]) > 0
    hits = hits.cumsum(axis=1)
    totals = np.asarray([total for _, total in known])
    queries = (hits > 0).mean(axis=0)
    texts = (hits / totals[:, None]).mean(axis=0)
    columns = ["rank", "queries with a relevant text up to here", "relevant texts up to here"]
    rows = list(zip(range(1, ranks + 1), queries.tolist(), texts.tolist(), strict=True))
    yield Chart("hits", "Relevant texts, by rank", columns, rows, "lines", value="share")
