"""Calibration of a classifier on a table: does it know when it is wrong?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from callbacks.chart import Chart
from datamodules.core.types import PlainDict
from zoo.markdown import markdown_table

#: Bins of the reliability picture, each with the same number of rows.
BINS = 15
LEVELS = (0.01, 0.02, 0.05, 0.10)


@dataclass(frozen=True)
class Calibration:
    """Probabilities of the answers for n rows, compared with their accuracy."""

    rows: int
    #: expected calibration error: mean of |accuracy - mean probability| over the bins, by their rows.
    ece: float
    #: of each bin: mean probability, accuracy, number of rows.
    bins: Sequence[Sequence[float]]
    #: error among the answers -> largest share of the rows that can be answered, the most probable answers first.
    coverage: dict[str, float]

    @classmethod
    def of(cls, probability: NDArray[np.float64], is_right: NDArray[np.bool_]) -> Self:
        """Compare probabilities of the answers for n rows, [n], with the correctness of the answers, [n]."""
        # Rows of equal probability share their accuracy: they have no order, and are answered together.
        _, group, sizes = np.unique(probability, return_inverse=True, return_counts=True)
        right = np.bincount(group, weights=is_right)
        order = np.argsort(probability)
        parts = (np.array_split(each[order], BINS) for each in (probability, (right / sizes)[group]))
        bins = [
            (float(mean.mean()), float(accuracy.mean()), len(mean))
            for mean, accuracy in zip(*parts, strict=True)
            if len(mean)
        ]
        ece = sum(rows * abs(accuracy - mean) for mean, accuracy, rows in bins) / max(1, len(probability))
        answered = np.cumsum(sizes[::-1])
        errors = 1 - np.cumsum(right[::-1]) / answered
        coverage = {
            f"{level:g}": float(answered[errors <= level + 1e-12].max(initial=0) / max(1, len(probability)))
            for level in LEVELS
        }
        return cls(len(probability), ece, bins, coverage)

    def as_json(self) -> PlainDict:
        """Plain values."""
        return {**asdict(self), "ece_bins": f"{BINS} of equal mass"}

    def as_markdown(self) -> str:
        """The error, and the table of coverage against error."""
        lines = [["error among answers, at most", "answered"]]
        lines += [
            [f"{100 * float(level):g} %", f"{100 * share:.1f} %"] for level, share in self.coverage.items()
        ]
        return (
            f"Calibration on {self.rows:,} answers: ECE {self.ece:.4f} ({BINS} bins of equal mass).\n"
            f"{markdown_table(lines)}\n"
            "This table is of these answers; `zoo predict --max_error` bounds the error of further ones."
        )

    def chart(self) -> Chart:
        """The accuracy over the mean probability of each bin."""
        columns = ["mean probability", "accuracy", "as probable"]
        rows = [[mean, accuracy, mean] for mean, accuracy, _ in self.bins]
        title = f"Reliability, {self.rows:,} rows in {len(rows)} bins: ECE {self.ece:.4f}"
        return Chart("reliability", title, columns, rows, "lines", value="accuracy")
