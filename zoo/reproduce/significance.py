"""Comparison of two systems query by query: a paired randomization test.

Source: M. D. Smucker, J. Allan, B. Carterette, A comparison of statistical significance tests for information retrieval
evaluation, CIKM 2007.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

#: Draws of signs, unless there are fewer combinations of them; a p of 0.05 is then known to about 0.002.
DRAWS = 10_000


class Difference(NamedTuple):
    """The mean difference of two systems over the queries that both have, and its two-sided p."""

    mean: float
    p: float
    queries: int


def compare(first: Mapping[str, float], second: Mapping[str, float]) -> Difference | None:
    """Test the difference of two systems (query -> figure); None if they have no query in common."""
    from scipy.stats import permutation_test

    both = sorted(first.keys() & second.keys())
    if not both:
        return None
    difference = np.array([first[query] - second[query] for query in both])
    p = 1.0  # of a single query, whose sign may be either
    if len(both) > 1:
        options = {"permutation_type": "samples", "n_resamples": DRAWS, "random_state": 0}
        p = permutation_test((difference,), np.mean, vectorized=True, batch=1000, **options).pvalue
    return Difference(float(difference.mean()), float(p), len(both))


def mean_by_query(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each query's mean over runs, for queries that all runs have."""
    common = set(runs[0]).intersection(*runs[1:]) if runs else set()
    return {query: float(np.mean([run[query] for run in runs])) for query in sorted(common)}
