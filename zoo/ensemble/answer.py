"""The answer to a user's two questions: what is the best that can be done, and does the memory help?

Every row of the table is measured on the same texts, so two rows are compared text by text: by McNemar's exact test
on those that only one of them has right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules.core.storage import new_file, write_json, write_text

#: What is counted of a row.
_COUNTS = ("texts", "right", "gained", "lost")

#: Below this probability of chance a difference is told as one.
LEVEL = 0.05

TITLES = {
    "majority": "majority class",
    "svm": "TF-IDF (1, 2) + linear SVM",
    "regression": "logistic regression on the transformer",
    "lexical": "lexical: TF-IDF, linear",
    "encoder": "encoder",
    "bag": "bag of word vectors, kernel",
    "lexical_vote": "vote of lexical neighbours",
    "dense_vote": "vote of dense neighbours",
}


class AnswerScores(Metric):
    """Counts what the rows of the table have right; exact on any number of processes."""

    full_state_update = False
    texts: Tensor
    right: Tensor
    gained: Tensor
    lost: Tensor

    def __init__(self, names: Sequence[str], **settings: Any) -> None:
        super().__init__(**settings)
        self.names = list(names)
        self.add_state("texts", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        for state in ("right", "gained", "lost"):
            self.add_state(state, torch.zeros(len(self.names), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, said: Mapping[str, Tensor], target: Tensor, weight: Tensor) -> None:
        """Count a batch.

        Args:
            said: row of the table -> scores [B, C]; the row `all` is what the others are compared with.
            target: [B] classes; C = unknown label.
            weight: [B], 0 for rows that only pad a batch.
        """
        counted = (weight > 0) & (target >= 0)
        right = torch.stack([said[name].argmax(dim=1) == target for name in self.names])[:, counted]
        best = right[self.names.index("all")]
        self.texts += counted.sum()
        self.right += right.sum(dim=1)
        self.gained += (best & ~right).sum(dim=1)
        self.lost += (~best & right).sum(dim=1)

    def compute(self) -> Tensor:
        """int64 [rows of the table, 4]: texts, right, gained, lost."""
        return torch.stack([self.texts.expand(len(self.names)), self.right, self.gained, self.lost], dim=1)

    def lines(self, weights: Mapping[str, float]) -> list[Line]:
        """The table's rows, of all processes together; `weights` are the witnesses'."""
        return [
            Line(name, **dict(zip(_COUNTS, counts, strict=True)), weight=weights.get(name))
            for name, counts in zip(self.names, self.compute().tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    name: str
    #: texts that were classified, and how many of them rightly.
    texts: int
    right: int
    #: texts that only all witnesses together have right, and that only this row has.
    gained: int
    lost: int
    #: of a witness, beside all others.
    weight: float | None = None

    def figures(self) -> dict[str, float]:
        """The row as figures that `lines_of` reads."""
        found = {name: getattr(self, name) for name in (*_COUNTS, "weight")}
        return {f"{self.name}/{name}": float(value) for name, value in found.items() if value is not None}

    @property
    def accuracy(self) -> float:
        """Share of right labels."""
        return self.right / max(self.texts, 1)

    @property
    def standard_error(self) -> float:
        """Of the accuracy."""
        return sqrt(self.accuracy * (1 - self.accuracy) / max(self.texts, 1))

    @property
    def difference(self) -> float:
        """Accuracy of all witnesses together, less this row's."""
        return (self.gained - self.lost) / max(self.texts, 1)

    @property
    def difference_error(self) -> float:
        """Standard error of the difference, of paired texts."""
        n = max(self.texts, 1)
        return sqrt(max(self.gained + self.lost - (self.gained - self.lost) ** 2 / n, 0.0)) / n

    @property
    def p_value(self) -> float:
        """McNemar's exact test: how probable so uneven a division is if the two are equally good."""
        from scipy.stats import binomtest

        differ = self.gained + self.lost
        return float(binomtest(min(self.gained, self.lost), differ).pvalue) if differ else 1.0


def lines_of(figures: Mapping[str, float]) -> list[Line]:
    """The rows whose `Line.figures` these are, in their order."""
    names = dict.fromkeys(name.rpartition("/")[0] for name in figures)
    return [
        Line(
            name,
            **{count: int(figures[f"{name}/{count}"]) for count in _COUNTS},
            weight=figures.get(f"{name}/weight"),
        )
        for name in names
    ]


@dataclass(frozen=True)
class Answer:
    """The table with what it says.

    Attributes:
        split: `validation` or `test`.
        lines: the table's rows.
        notes: how it was measured, and what could not take part.
    """

    split: str
    lines: list[Line]
    notes: list[str]

    @property
    def weights(self) -> dict[str, float]:
        """Witness -> weight."""
        return {line.name: line.weight for line in self.lines if line.weight is not None}

    def sentence(self) -> str:
        """Whether the memory helps, in plain words."""
        lines = {line.name: line for line in self.lines}
        whole, without = lines["all"], lines.get("without memory")
        where = f"On these {whole.texts:,} {self.split} rows"
        if "memory alone" not in lines:
            return f"{where} nothing can be said about the memory: it has no vote."
        if without is None:
            return f"{where} the memory alone has {100 * whole.accuracy:.1f} %: no witness reads the text itself."
        figures = (
            f"{100 * whole.accuracy:.1f} % with it, {100 * without.accuracy:.1f} % without"
            f" ({100 * without.difference:+.1f} ± {100 * without.difference_error:.1f} points, McNemar p ="
            f" {without.p_value:.2g})"
        )
        if without.p_value >= LEVEL:
            return f"{where} the memory makes no difference that can be told from chance: {figures}."
        return f"{where} the memory {'helps' if without.difference > 0 else 'hurts'}: {figures}."

    def cells(self) -> list[list[str]]:
        """The table as text, a list a row, the head first."""
        head = [f"{self.split} rows", "accuracy, %", "standard error", "all is ahead by", "p", "weight"]
        body = []
        for line in self.lines:
            is_all = line.name == "all"
            weight = "" if line.weight is None else f"{line.weight:.2f}" if line.weight else "0: left out"
            body.append(
                [
                    TITLES.get(line.name, line.name),
                    f"{100 * line.accuracy:.1f}",
                    f"{100 * line.standard_error:.1f}",
                    "" if is_all else f"{100 * line.difference:+.1f} ± {100 * line.difference_error:.1f}",
                    "" if is_all else f"{line.p_value:.2g}",
                    weight,
                ]
            )
        return [head, *body]

    def as_text(self) -> str:
        """For a terminal."""
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
        """As a page."""
        cells = self.cells()
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        lines.insert(1, "|" + "---|" * len(cells[0]))
        return "\n".join([self.sentence(), "", *lines, "", *self.notes]) + "\n"

    def as_json(self) -> dict[str, object]:
        """Plain values."""
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
        from matplotlib.figure import Figure  # a second, that other commands need not pay

        figure = Figure(figsize=(8, 0.4 * len(self.lines) + 1.2), layout="constrained")
        axes = figure.subplots()
        titles = [TITLES.get(line.name, line.name) for line in self.lines]
        values = [100 * line.accuracy for line in self.lines]
        colours = ["C1" if line.name == "all" else "C0" for line in self.lines]
        axes.barh(titles, values, xerr=[100 * line.standard_error for line in self.lines], color=colours)
        for place, value in enumerate(values):
            axes.annotate(f" {value:.1f}", (0, place), va="center", color="white")
        axes.invert_yaxis()
        axes.set_xlabel(f"{self.split} accuracy, %, with its standard error")
        figure.savefig(path, dpi=150, format="png")
