"""Bases of the metrics; sums of whole numbers make them exact on any number of processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.core.lightning import Metric

#: Measures of rankings are summed as whole numbers of this many parts of 1: 12 decimals, room for 8 million queries.
PARTS = 2**40


def sign_test(gained: int, lost: int) -> float:
    """Return the probability of a division of paired results as uneven as this one if both sides are equally good."""
    from scipy.stats import binomtest

    differ = gained + lost
    return float(binomtest(gained, differ).pvalue) if differ else 1.0


def paired_test(gains: NDArray[np.float64]) -> float:
    """Return the probability of a sum of paired differences [n] as far from 0 if each had either sign as often.

    Of whole numbers, such as right answers, the sign test is exact; of others, 10,000 random draws of all signs decide.
    """
    if np.array_equal(gains, np.rint(gains)):
        return sign_test(int((gains > 0).sum()), int((gains < 0).sum()))
    random, gains, as_far = np.random.default_rng(0), gains[gains != 0], 0
    least = abs(gains.sum()) * (1 - 1e-9)
    for _ in range(100):
        signs = 2.0 * random.integers(2, size=(100, len(gains)), dtype=np.int8) - 1
        as_far += int((np.abs(signs @ gains) >= least).sum())
    return (1 + as_far) / 10_001


def joined(batches: list[Tensor]) -> Tensor:
    """The values of all batches, over all processes, on the CPU."""
    from torchmetrics.utilities import dim_zero_cat  # imports transformers, too

    return dim_zero_cat(batches).cpu() if len(batches) else torch.zeros(0)


class RowMeans(Metric):
    """Means of one or several values over all rows, and over the rows without duplicates elsewhere.

    The mean of the terms of a loss is not exact.
    """

    full_state_update = False

    rows: Tensor
    sums: Tensor
    rows_without_duplicates: Tensor
    sums_without_duplicates: Tensor
    loss_sum: Tensor
    loss_terms: Tensor

    def __init__(self, names: Sequence[str], parts: int = 1, variants: tuple[int, ...] = ()) -> None:
        """Make room for named values, in units of 1 / `parts`, of a model or of several `variants` of it (a shape)."""
        super().__init__()
        self.names, self.parts = list(names), parts
        shape = (*variants, len(self.names))
        self.add_counts(rows=(), sums=shape, rows_without_duplicates=(), sums_without_duplicates=shape)
        self.add_counts(loss_terms=())
        self.add_state("loss_sum", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")

    def add_counts(self, **shapes: tuple[int, ...]) -> None:
        """Add states of whole numbers, which are summed over the processes."""
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.long), dist_reduce_fx="sum")

    def add_rows(self, values: Tensor, counted: Tensor, is_duplicate: Tensor | None) -> None:
        """Add values [*variants, n, names] of n rows; bool [n]: counted rows, and those with duplicates elsewhere."""
        parts = (values.double() * self.parts).round().long()
        others = counted if is_duplicate is None else counted & ~is_duplicate
        self.rows += counted.sum()
        self.sums += parts[..., counted, :].sum(dim=-2)
        self.rows_without_duplicates += others.sum()
        self.sums_without_duplicates += parts[..., others, :].sum(dim=-2)

    def means(self, variant: int | None = None) -> dict[str, Tensor]:
        """Name -> mean, float64; and `..._without_duplicates` if some of the rows have duplicates, and not all."""
        sums, others = self.sums, self.sums_without_duplicates
        if variant is not None:
            sums, others = sums[variant], others[variant]
        means = dict(zip(self.names, sums.double() / self.parts / self.rows.clamp(min=1), strict=True))
        if 0 < self.rows_without_duplicates < self.rows:
            values = others.double() / self.parts / self.rows_without_duplicates
            means |= zip((f"{name}_without_duplicates" for name in self.names), values, strict=True)
        return means

    def add_loss(self, terms: Tensor) -> None:
        """Add terms whose mean is the loss."""
        self.loss_sum += terms.detach().double().sum()
        self.loss_terms += len(terms)

    @property
    def mean_loss(self) -> Tensor:
        """The mean of the terms of the loss."""
        return self.loss_sum / self.loss_terms.clamp(min=1)
