"""The answer to a user's two questions: which accuracy is possible, and does the memory help?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from callbacks.chart import write_table
from datamodules.core.errors import InputError, reason
from datamodules.core.storage import load_json, write_json, write_text
from datamodules.core.types import PlainDict
from datamodules.duplicates import DuplicateMarks
from zoo.ensemble.members import titles
from zoo.markdown import markdown_table
from zoo.tasks.metrics import paired_test

#: Rows of the table that are no single member or reference.
_COMBINATIONS = ("without memory", "memory alone", "all")
#: Differences with a smaller p-value are reported as such.
_LEVEL = 0.05


@dataclass(frozen=True)
class Line:
    """One row of the table: the number of texts, and the sum of its scores, of classes that of the right texts."""

    name: str
    texts: int
    right: float
    standard_error: float
    #: accuracy of the whole ensemble minus this row's, and its standard error for paired texts.
    difference: float
    difference_error: float
    #: number of groups of duplicates in which the whole ensemble classifies more texts correctly, and this row does.
    gained: int
    lost: int
    #: of the difference; see `paired_test`.
    p_value: float
    #: of a member, in the whole ensemble.
    weight: float | None = None

    @property
    def accuracy(self) -> float:
        """Mean score: of classes, the share of correct labels."""
        return self.right / max(self.texts, 1)

    @property
    def percentage(self) -> str:
        """The accuracy in percent."""
        return f"{100 * self.accuracy:.1f}"


def lines_of(
    scores: Mapping[str, NDArray[np.float64]], keys: NDArray[np.integer], weights: Mapping[str, float]
) -> list[Line]:
    """The table's rows, by the scores of n texts (see `row_scores`), and the weights of the members.

    Duplicates have equal keys [n]: they are one observation in standard errors and tests.
    """
    group = np.unique(keys, return_inverse=True)[1].reshape(-1)
    sizes, texts = np.bincount(group), max(len(keys), 1)
    sums = {name: np.bincount(group, each).astype(np.float64) for name, each in scores.items()}

    def standard_error(own: NDArray[np.float64]) -> float:
        """Of a mean over all texts, from its sums by group, which are independent."""
        return float(np.linalg.norm(own - sizes * (own.sum() / texts))) / texts

    lines = []
    for name, own in sums.items():
        gain = sums["all"] - own
        lines.append(
            Line(
                name,
                len(keys),
                float(own.sum()),
                standard_error=standard_error(own),
                difference=float(gain.sum()) / texts,
                difference_error=standard_error(gain),
                gained=int((gain > 0).sum()),
                lost=int((gain < 0).sum()),
                p_value=paired_test(gain),
                weight=weights.get(name),
            )
        )
    return lines


def left_out_of(marks: DuplicateMarks | None) -> dict[str, int]:
    """Count the rows with duplicates, and near-duplicates, which members know: the table leaves them out."""
    if marks is None:
        return {"duplicates": 0, "near": 0}
    return {"duplicates": int(marks.is_duplicate.sum()), "near": int(marks.near.sum())}


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """A phrase on the rows that `left_out_of` counted; empty if there are none."""
    names = {"duplicates": "a duplicate", "near": "a near-duplicate"}
    parts = [f"{left_out[key]:,} with {name}" for key, name in names.items() if left_out[key]]
    return f"{' and '.join(parts)} among the training rows or in the memory" if parts else ""


@dataclass(frozen=True, repr=False)
class Answer:
    """The table and its conclusion."""

    #: `validation` or `test`.
    split: str
    lines: list[Line]
    #: conditions of the measurement, and the members that do not take part.
    notes: list[str]
    #: see `left_out_of`.
    left_out: Mapping[str, int]
    #: of the rows.
    measure: str = "accuracy"

    @classmethod
    def of(cls, described: PlainDict) -> Answer:
        """The answer that `as_json` described."""
        names = [each.name for each in fields(Line)]
        lines = [Line(**{name: row[name] for name in names}) for row in described["rows"]]
        return cls(described["split"], lines, described["notes"], described["left_out"], described["measure"])

    @classmethod
    def read(cls, file: Path) -> Answer:
        """The answer in a file that `write` wrote; raises an `InputError` if it is damaged."""
        try:
            return cls.of(load_json(file))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file}: damaged ({reason(error)}); train the model again") from error

    def __repr__(self) -> str:
        return self.as_markdown()

    def _repr_markdown_(self) -> str:
        """The table in a notebook, with a paragraph for each sentence."""
        return "\n\n".join(self._parts()).replace("*", r"\*")

    @property
    def has_rows(self) -> bool:
        """True if a row was counted."""
        return bool(self.lines and self.lines[0].texts)

    def sentence(self) -> str:
        """The conclusion: does the memory help? With the number of rows that are not counted."""
        left_out = describe_left_out(self.left_out)
        if not self.has_rows:
            return f"No {self.split} row can be counted: {left_out or 'all have unknown labels'}."
        return self._conclusion() + self._best_alone() + (f" Not counted: {left_out}." if left_out else "")

    def _conclusion(self) -> str:
        lines = {line.name: line for line in self.lines}
        whole, without = lines["all"], lines.get("without memory")
        rows = f"On these {whole.texts:,} {self.split} rows"
        if "memory alone" not in lines:
            return f"{rows} the memory was not measured: it has no vote."
        if without is None:
            return f"{rows} the memory alone has {whole.percentage} %: no member reads the text itself."
        test = "McNemar" if self.measure == "accuracy" else "paired test"
        figures = (
            f"{whole.percentage} % with it, {without.percentage} % without"
            f" ({100 * without.difference:+.1f} ± {100 * without.difference_error:.1f} points, {test} p ="
            f" {without.p_value:.2g})"
        )
        if without.p_value >= _LEVEL:
            return f"{rows} the memory makes no significant difference: {figures}."
        return f"{rows} the memory {'helps' if without.difference > 0 else 'hurts'}: {figures}."

    def _best_alone(self) -> str:
        """A sentence that names the best single member or reference, if it is ahead of the whole ensemble."""
        single = [line for line in self.lines if line.name not in _COMBINATIONS]
        best = min(single, key=lambda line: line.difference)
        if best.difference >= 0:
            return ""
        return (
            f" Ahead of all on its own: {titles().get(best.name, best.name)}, {best.percentage} %"
            f" ({-100 * best.difference:+.1f} ± {100 * best.difference_error:.1f} points, p = {best.p_value:.2g})."
        )

    def cells(self) -> list[list[str]]:
        """The table as text, a list per row, its header first."""
        measured = [f"{self.split} rows", f"{self.measure}, %", "standard error"]
        head = [*measured, "all is ahead by", "p", "weight"]
        body, names = [], titles()
        for line in self.lines:
            weight = "" if line.weight is None else f"{line.weight:.2f}" if line.weight else "0: unused"
            difference, error = 100 * line.difference, 100 * line.difference_error
            ahead = [f"{difference:+.1f} ± {error:.1f}", f"{line.p_value:.2g}"]
            own = [names.get(line.name, line.name), line.percentage, f"{100 * line.standard_error:.1f}"]
            body.append([*own, *(["", ""] if line.name == "all" else ahead), weight])
        return [head, *body]

    def as_markdown(self) -> str:
        """The table and its conclusion."""
        return "\n".join([*self._parts(), ""])

    def _parts(self) -> list[str]:
        table = [markdown_table(self.cells())] if self.has_rows else []
        return [*table, *([self.sentence()] if self.lines else []), *self.notes]

    def as_json(self) -> PlainDict:
        """The answer as plain values."""
        rows = [{**asdict(line), "accuracy": line.accuracy} for line in self.lines]
        weights = {line.name: line.weight for line in self.lines if line.weight is not None}
        sentence = self.sentence() if self.lines else self.notes[0]
        answer = {"split": self.split, "measure": self.measure, "sentence": sentence}
        measured = {"left_out": self.left_out, "weights": weights, "rows": rows}
        return {**answer, "notes": self.notes, **measured}

    def write(self, folder: Path, name: str = "answer") -> None:
        """Write NAME.json, NAME.md and NAME.csv."""
        write_json(folder / f"{name}.json", self.as_json())
        write_text(folder / f"{name}.md", self.as_markdown())
        if self.has_rows:
            rows = self.as_json()["rows"]
            write_table(folder / f"{name}.csv", [*rows[0]], [[*row.values()] for row in rows])
