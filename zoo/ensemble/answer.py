"""The answer to a user's two questions: which accuracy is possible, and does the memory help?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules.core.storage import write_json, write_text
from datamodules.core.types import PlainDict
from zoo.ensemble.members import titles
from zoo.markdown import markdown_table

#: Differences with a smaller p-value are reported as such.
_LEVEL = 0.05


class AnswerScores(Metric):
    """Counts the correct predictions of the table's rows; exact on any number of processes."""

    full_state_update = False
    #: int64 [rows of the table, 4]: texts, right, gained, lost.
    counts: Tensor

    def __init__(self, names: Sequence[str], sync_on_compute: bool = True) -> None:
        super().__init__(sync_on_compute=sync_on_compute)
        self.names = list(names)
        self.add_state("counts", torch.zeros(len(names), 4, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, table: Mapping[str, Tensor], target: Tensor, weight: Tensor) -> None:
        """Count a batch: row of the table -> scores [B, C], classes [B], and weights [B], 0 for padding."""
        counted = (weight > 0) & (target >= 0)
        right = torch.stack([table[name].argmax(dim=1) == target for name in self.names])[:, counted]
        best = right[self.names.index("all")]
        cases = [torch.ones_like(right), right, best & ~right, ~best & right]
        self.counts += torch.stack([case.sum(dim=1) for case in cases], dim=1)

    def compute(self) -> Tensor:
        """Return the counts, over all processes."""
        return self.counts

    def lines(self, weights: Mapping[str, float]) -> list[Line]:
        """The table's rows, over all processes, with the weights of the members."""
        return [
            Line(name, texts, right, gained, lost, weights.get(name))
            for name, (texts, right, gained, lost) in zip(self.names, self.compute().tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Line:
    """One row of the table: the numbers of texts, and of those that it classifies correctly."""

    name: str
    texts: int
    right: int
    #: number of texts that only the whole ensemble classifies correctly, and that only this row does.
    gained: int
    lost: int
    #: of a member, in the whole ensemble.
    weight: float | None = None

    @property
    def accuracy(self) -> float:
        """Share of correct labels."""
        return self.right / max(self.texts, 1)

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy."""
        return sqrt(self.accuracy * (1 - self.accuracy) / max(self.texts, 1))

    @property
    def difference(self) -> float:
        """Accuracy of the whole ensemble minus this row's."""
        return (self.gained - self.lost) / max(self.texts, 1)

    @property
    def difference_error(self) -> float:
        """Standard error of the difference, for paired texts."""
        n = max(self.texts, 1)
        return sqrt(max(self.gained + self.lost - (self.gained - self.lost) ** 2 / n, 0.0)) / n

    @property
    def p_value(self) -> float:
        """McNemar's exact test: probability of a division as uneven as this one if both are equally good."""
        from scipy.stats import binomtest

        differ = self.gained + self.lost
        return float(binomtest(min(self.gained, self.lost), differ).pvalue) if differ else 1.0


@dataclass(frozen=True)
class Answer:
    """The table and its conclusion."""

    #: `validation` or `test`.
    split: str
    lines: list[Line]
    #: conditions of the measurement, and the members that do not take part.
    notes: list[str]

    def sentence(self) -> str:
        """The conclusion: does the memory help?"""
        lines = {line.name: line for line in self.lines}
        whole, without = lines["all"], lines.get("without memory")
        rows = f"On these {whole.texts:,} {self.split} rows"
        if "memory alone" not in lines:
            return f"{rows} the memory was not measured: it has no vote."
        if without is None:
            return (
                f"{rows} the memory alone has {100 * whole.accuracy:.1f} %: no member reads the text itself."
            )
        figures = (
            f"{100 * whole.accuracy:.1f} % with it, {100 * without.accuracy:.1f} % without"
            f" ({100 * without.difference:+.1f} ± {100 * without.difference_error:.1f} points, McNemar p ="
            f" {without.p_value:.2g})"
        )
        if without.p_value >= _LEVEL:
            return f"{rows} the memory makes no significant difference: {figures}."
        return f"{rows} the memory {'helps' if without.difference > 0 else 'hurts'}: {figures}."

    def cells(self) -> list[list[str]]:
        """The table as text, a list per row, its header first."""
        head = [f"{self.split} rows", "accuracy, %", "standard error", "all is ahead by", "p", "weight"]
        body, names = [], titles()
        for line in self.lines:
            is_all = line.name == "all"
            weight = "" if line.weight is None else f"{line.weight:.2f}" if line.weight else "0: unused"
            body.append(
                [
                    names.get(line.name, line.name),
                    f"{100 * line.accuracy:.1f}",
                    f"{100 * line.standard_error:.1f}",
                    "" if is_all else f"{100 * line.difference:+.1f} ± {100 * line.difference_error:.1f}",
                    "" if is_all else f"{line.p_value:.2g}",
                    weight,
                ]
            )
        return [head, *body]

    def as_markdown(self) -> str:
        """The table and its conclusion."""
        return "\n".join([markdown_table(self.cells()), self.sentence(), *self.notes, ""])

    def as_json(self) -> PlainDict:
        """The answer as plain values."""
        figures = ("accuracy", "standard_error", "difference", "difference_error", "p_value")
        rows = [{**asdict(line), **{name: getattr(line, name) for name in figures}} for line in self.lines]
        weights = {line.name: line.weight for line in self.lines if line.weight is not None}
        answer = {"split": self.split, "sentence": self.sentence(), "notes": self.notes}
        return {**answer, "weights": weights, "rows": rows}

    def write(self, folder: Path, name: str = "answer") -> None:
        """Write NAME.json and NAME.md."""
        write_json(folder / f"{name}.json", self.as_json())
        write_text(folder / f"{name}.md", self.as_markdown())
