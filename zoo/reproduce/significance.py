"""Whether one ranking is better than another, or only luckier in its queries: a paired randomisation test.

If two systems are alike, it is a matter of chance which of them has which of a query's two values. So the signs of the
differences are drawn at random again and again; p is the share of draws whose mean is at least as far from 0 as the
one that was measured (R. A. Fisher, The Design of Experiments, 1935; for rankings: M. D. Smucker, J. Allan,
B. Carterette, A comparison of statistical significance tests for information retrieval evaluation, CIKM 2007).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datamodules.core.storage import write_json

#: Each query's figure, in the folder of a run.
QUERIES = "queries.json"
#: Draws of signs; a p of 0.05 is then known to about 0.002.
DRAWS = 10_000


class Difference(NamedTuple):
    """Of two systems over the queries that both have."""

    #: mean of the first less that of the second.
    mean: float
    #: two-sided.
    p: float
    queries: int


def compare(first: Mapping[str, float], second: Mapping[str, float], draws: int = DRAWS) -> Difference | None:
    """Test the difference of two systems; the same draws every time.

    Args:
        first: query -> its figure.
        second: likewise.
        draws: how often the signs are drawn.

    Returns:
        None where they have no query in common.
    """
    both = sorted(first.keys() & second.keys())
    if not both:
        return None
    difference = np.array([first[query] - second[query] for query in both], np.float64)
    random, extreme, left = np.random.default_rng(0), 0, draws
    measured = abs(difference.sum()) - 1e-12 * len(both)  # what rounding may add
    while left:
        size = min(left, 1000)
        signs = random.integers(0, 2, size=(size, len(both)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ difference) >= measured).sum())
        left -= size
    # The measured signs are a draw as well: p is never 0.
    return Difference(float(difference.mean()), (extreme + 1) / (draws + 1), len(both))


def mean_by_query(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each query's mean over runs, of those queries that all runs have."""
    if not runs:
        return {}
    common = set(runs[0]).intersection(*runs[1:])
    return {query: float(np.mean([run[query] for run in runs])) for query in sorted(common)}


def keep_queries(run: Path, stage: str, figures: Mapping[str, float]) -> None:
    """Write down each query's figure of a run's `val` or `test`, beside what is there, if there are any."""
    if figures:
        file = run / QUERIES
        known = json.loads(file.read_text()) if file.exists() else {}
        write_json(file, {**known, stage: dict(figures)})


def kept_queries(row: Path, stage: str) -> dict[str, float]:
    """Each query's mean over the runs of a row that `keep_queries` wrote something for."""
    runs = [json.loads(file.read_text()) for file in sorted(row.glob(f"seed-*/{QUERIES}"))]
    return mean_by_query([run[stage] for run in runs if stage in run])
