"""What a model that ranks does with queries whose answers are known: how far down its order the right texts stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from callbacks.chart import Chart

#: Ranks that a chart shows.
MOST_RANKS = 50
#: Bars of the scores' distribution.
_BINS = 20


def hits_by_rank(ranked: Sequence[Sequence[float]], relevant: Sequence[int]) -> Iterator[Chart]:
    """How many queries have a relevant text up to a rank, and what share of all relevant texts stands there.

    Args:
        ranked: for each query the grades of what was found, the best first; above 0 = relevant.
        relevant: how many texts are relevant to each query; queries without one are left out, and without any
            query there is no chart.
    """
    known = [(grades, total) for grades, total in zip(ranked, relevant, strict=True) if total]
    ranks = min(MOST_RANKS, max((len(grades) for grades, _ in known), default=0))
    if not ranks:
        return
    found = np.zeros((len(known), ranks), np.int64)
    for row, (grades, _) in enumerate(known):
        found[row, : len(grades)] = np.asarray(grades[:ranks]) > 0
    found = found.cumsum(axis=1)
    totals = np.asarray([total for _, total in known])
    lines: list[list[Any]] = [
        [rank + 1, float((found[:, rank] > 0).mean()), float((found[:, rank] / totals).mean())]
        for rank in range(ranks)
    ]
    columns = ["rank", "queries with a relevant text up to here", "relevant texts up to here"]
    yield Chart("hits", "What is found, by rank", columns, lines, "lines", value="share")


def scores_by_label(scores: Sequence[float], is_relevant: Sequence[bool]) -> Iterator[Chart]:
    """How the scores of texts that match and of others are spread; nothing where one kind is missing."""
    values, marks = np.asarray(scores, float), np.asarray(is_relevant, bool)
    values, marks = values[np.isfinite(values)], marks[np.isfinite(values)]
    if marks.all() or not marks.any():
        return
    edges = np.histogram_bin_edges(values, _BINS)
    shares: list[NDArray[np.float64]] = [
        np.histogram(values[chosen], edges)[0] / chosen.sum() for chosen in (marks, ~marks)
    ]
    middles = (edges[:-1] + edges[1:]) / 2
    digits = max(0, 1 - floor(log10(edges[1] - edges[0])))
    lines: list[list[Any]] = [
        [f"{middle:.{digits}f}", float(one), float(other)]
        for middle, one, other in zip(middles, *shares, strict=True)
    ]
    columns = ["score", "matches", "does not match"]
    yield Chart("scores", "Scores of pairs", columns, lines, "bars", value="share of such pairs")
