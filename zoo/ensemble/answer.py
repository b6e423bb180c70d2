"""The answer to a user's two questions: which accuracy is possible, and does the memory help?

All rows of the table are measured on the same texts, so two rows are compared text by text: by McNemar's exact test on
the texts that only one of them classifies correctly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules.core.storage import new_file, write_json, write_text
from datamodules.core.types import PlainDict
from zoo.ensemble.members import titles

#: The counts of a row.
_COUNTS = ("texts", "right", "gained", "lost")

#: Differences with a smaller p-value are reported as such.
LEVEL = 0.05


class AnswerScores(Metric):
    """Counts the correct predictions of the table's rows; exact on any number of processes."""

    full_state_update = False
    texts: Tensor
    right: Tensor
    gained: Tensor
    lost: Tensor

    def __init__(self, names: Sequence[str], sync_on_compute: bool = True) -> None:
        super().__init__(sync_on_compute=sync_on_compute)
        self.names = list(names)
        self.add_state("texts", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        for state in ("right", "gained", "lost"):
            self.add_state(state, torch.zeros(len(self.names), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, table: Mapping[str, Tensor], target: Tensor, weight: Tensor) -> None:
        """Count a batch.

        Args:
            table: row of the table -> scores [B, C]; all rows are compared with the row `all`.
            target: [B] classes; C = unknown label.
            weight: [B], 0 for rows that only pad a batch.
        """
        counted = (weight > 0) & (target >= 0)
        right = torch.stack([table[name].argmax(dim=1) == target for name in self.names])[:, counted]
        best = right[self.names.index("all")]
        self.texts += counted.sum()
        self.right += right.sum(dim=1)
        self.gained += (best & ~right).sum(dim=1)
        self.lost += (~best & right).sum(dim=1)

    def compute(self) -> Tensor:
        """int64 [rows of the table, 4]: texts, right, gained, lost."""
        return torch.stack([self.texts.expand(len(self.names)), self.right, self.gained, self.lost], dim=1)

    def lines(self, weights: Mapping[str, float]) -> list[Line]:
        """The table's rows, over all processes, with the weights of the members."""
        return [
            Line(name, **dict(zip(_COUNTS, counts, strict=True)), weight=weights.get(name))
            for name, counts in zip(self.names, self.compute().tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    name: str
    #: number of texts, and of those that the row classifies correctly.
    texts: int
    right: int
    #: number of texts that only the whole ensemble classifies correctly, and that only this row does.
    gained: int
    lost: int
    #: of a member, in the whole ensemble.
    weight: float | None = None

    def figures(self) -> dict[str, float]:
        """The row as named figures, for `lines_of`."""
        values = {name: getattr(self, name) for name in (*_COUNTS, "weight")}
        return {f"{self.name}/{name}": float(value) for name, value in values.items() if value is not None}

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


def lines_of(figures: Mapping[str, float]) -> list[Line]:
    """The rows that `Line.figures` described, in their order."""
    names = dict.fromkeys(name.rpartition("/")[0] for name in figures)
    return [
        Line(
            name,
            **{count: int(figures[f"{name}/{count}"]) for count in _COUNTS},
            weight=figures.get(f"{name}/weight"),
        )
        for name in names
    ]


def split_answer(scores: Mapping[str, float]) -> tuple[Answer | None, dict[str, float]]:
    """Separate the answer's figures in the scores of a test from the others.

    Returns:
        The answer, None where the model has none; and the other scores.
    """
    prefix = "answer/"
    figures = {name.removeprefix(prefix): scores[name] for name in scores if name.startswith(prefix)}
    others = {name: value for name, value in scores.items() if not name.startswith(prefix)}
    return Answer("test", lines_of(figures), []) if figures else None, others


@dataclass(frozen=True)
class Answer:
    """The table and its conclusion.

    Attributes:
        split: `validation` or `test`.
        lines: the table's rows.
        notes: conditions of the measurement, and the members that do not take part.
    """

    split: str
    lines: list[Line]
    notes: list[str]

    @property
    def weights(self) -> dict[str, float]:
        """Member -> weight."""
        return {line.name: line.weight for line in self.lines if line.weight is not None}

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
        if without.p_value >= LEVEL:
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

    def as_text(self) -> str:
        """The answer for a terminal."""
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]
        return "\n".join(["", *lines, "", self.sentence(), *self.notes])

    def as_markdown(self) -> str:
        """The answer as a page."""
        cells = self.cells()
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        lines.insert(1, "|" + "---|" * len(cells[0]))
        return "\n".join([self.sentence(), "", *lines, "", *self.notes]) + "\n"

    def as_json(self) -> PlainDict:
        """The answer as plain values."""
        figures = ("accuracy", "standard_error", "difference", "difference_error", "p_value")
        rows = [{**asdict(line), **{name: getattr(line, name) for name in figures}} for line in self.lines]
        return {
            "split": self.split,
            "sentence": self.sentence(),
            "notes": self.notes,
            "weights": self.weights,
            "rows": rows,
        }

    def write(self, folder: Path, name: str = "answer") -> None:
        """Write NAME.json, NAME.md and NAME.png."""
        write_json(folder / f"{name}.json", self.as_json())
        write_text(folder / f"{name}.md", self.as_markdown())
        with new_file(folder / f"{name}.png") as partial:
            self._draw(partial)

    def _draw(self, path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 0.4 * len(self.lines) + 1.2), layout="constrained")
        axes = figure.subplots()
        names = titles()
        values = [100 * line.accuracy for line in self.lines]
        colours = ["C1" if line.name == "all" else "C0" for line in self.lines]
        axes.barh(
            [names.get(line.name, line.name) for line in self.lines],
            values,
            xerr=[100 * line.standard_error for line in self.lines],
            color=colours,
        )
        for position, value in enumerate(values):
            axes.annotate(f" {value:.1f}", (0, position), va="center", color="white")
        axes.invert_yaxis()
        axes.set_xlabel(f"{self.split} accuracy, %, with its standard error")
        figure.savefig(path, dpi=150, format="png")
