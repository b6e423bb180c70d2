"""Reports of a table as JSON, Markdown and a picture, with the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from callbacks.pictures import write_picture
from datamodules.core.errors import visible
from datamodules.core.storage import write_json, write_text
from datamodules.core.types import PlainDict
from zoo.markdown import markdown_table
from zoo.reproduce.picture import Figures, draw
from zoo.reproduce.table import SPLITS, Row, Table, title

#: Draws of signs, unless there are fewer combinations of them; a p of 0.05 is then known to about 0.002.
DRAWS = 10_000


@dataclass(frozen=True)
class Report:
    """A table so far. `Reproduction` makes it after each run."""

    table: Table
    #: rows of the report, in order.
    rows: Sequence[Row]
    #: row -> its finished runs, with `metrics` and, of the test, `queries` (query -> value).
    results: Mapping[str, Sequence[PlainDict]]
    #: row, or run -> the reason.
    skipped: Mapping[str, str]
    failed: Mapping[str, str]

    def figures(self) -> Figures:
        """Return means and standard deviations (of the sample) over finished runs."""
        figures: Figures = {}
        for row in self.rows:
            runs = [result["metrics"] for result in self.results[row.name]]
            figures[row.name] = {}
            for name in dict.fromkeys([*(name for run in runs for name in run), *row.paper]):
                values = [run[name] for run in runs if name in run]
                figures[row.name][name] = {
                    "mean": statistics.fmean(values) if values else None,
                    "sd": statistics.stdev(values) if len(values) > 1 else None,
                    "n": len(values),
                    "paper": row.paper.get(name),
                }
        return figures

    def write(self, out: Path) -> None:
        """Write `table.json` and `table.md` into a folder."""
        figures = self.figures()
        write_json(out / "table.json", figures)
        text = "\n".join([*self._markdown(figures), *self._comparison()])
        write_text(out / "table.md", "\n".join(map(visible, text.split("\n"))) + "\n")

    def write_plot(self, out: Path) -> None:
        """Write `table.png`."""
        write_picture(out / "table.png", partial(draw, self.table, self.rows, self.figures()))

    def _markdown(self, figures: Figures) -> Iterator[str]:
        """Yield the table in percent, skipped rows and failed runs."""
        table = self.table
        columns = {
            f"{key}/{name}": f"{SPLITS[key]} {title(name)}" for key in SPLITS for name in table.metrics
        }
        metrics = [metric for metric in columns if any(metric in row for row in figures.values())]
        papers = list(dict.fromkeys(metric for row in self.rows for metric in row.paper))
        heads = [*(columns[metric] for metric in metrics), *map(table.paper_title, papers)]
        lines = [["row", *heads, "runs"]]
        for row in self.rows:
            cells = [self._cell(metric, figures[row.name].get(metric, {})) for metric in metrics]
            cells += [f"{table.percent(m, row.paper[m]):.1f}" if m in row.paper else "" for m in papers]
            lines.append([row.name, *cells, str(len(self.results[row.name]))])
        yield f"# {table.name}\n\n{table.description}\n\n{markdown_table(lines)}"
        counts = ", ".join(title(name) for name in table.metrics if name in table.counts)
        unit = f"Percent, but {counts} are numbers" if counts else "Percent"
        yield f"{unit}; mean ± standard deviation over seeds. Epochs are chosen on validation rows."
        if any(row.grow_from for row in self.rows):
            yield "Where a memory grew, the model is another row's, tuned on the validation rows."
        yield from (f"\n{line}" for line in describe_skipped(self.skipped))
        yield from (f"\nFailed: {run}: {reason}" for run, reason in self.failed.items())

    def _cell(self, metric: str, figure: Mapping[str, float | None]) -> str:
        mean, sd = figure.get("mean"), figure.get("sd")
        if mean is None:
            return ""
        spread = "" if sd is None else f" ± {self.table.percent(metric, sd):.1f}"
        return f"{self.table.percent(metric, mean):.1f}{spread}"

    def _comparison(self) -> Iterator[str]:
        """Yield each row against the one that the table names, query by query; nothing where it names none."""
        other = self.table.compare_with
        if other is None:
            return
        values = {row: _mean_by_query([run["queries"] for run in runs]) for row, runs in self.results.items()}
        lines = [["row", "difference", "p", "queries"]]
        for row in self.rows:
            both = sorted(values[row.name].keys() & values[other].keys())
            if row.name != other and both:
                difference = np.array([values[row.name][query] - values[other][query] for query in both])
                mean, p = 100 * difference.mean(), randomization_test(difference)
                lines.append([row.name, f"{mean:+.1f}", f"{p:.4f}", str(len(both))])
        if len(lines) > 1:
            yield f"\n## Against {other}, test\n\n{markdown_table(lines)}"
            yield (
                "Mean difference over queries of each query's mean over seeds, in percent; p of a paired"
                f" randomization test with two sides ({DRAWS:,} draws)."
            )


def _mean_by_query(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each query's mean over tested runs, for queries that all of them have."""
    tested = [run for run in runs if run]
    common = set(tested[0]).intersection(*tested[1:]) if tested else set()
    return {query: statistics.fmean(run[query] for run in tested) for query in common}


def randomization_test(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p of paired differences [n] (Smucker, Allan, Carterette, CIKM 2007)."""
    from scipy.stats import permutation_test

    if len(differences) == 1:
        return 1.0  # either sign
    options = {"permutation_type": "samples", "n_resamples": DRAWS, "random_state": 0}
    return float(permutation_test((differences,), np.mean, vectorized=True, batch=1000, **options).pvalue)


def describe_skipped(skipped: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason to skip rows: `skipped` has the reason of each row."""
    for reason in dict.fromkeys(skipped.values()):
        rows = [row for row, why in skipped.items() if why == reason]
        yield f"Skipped: {', '.join(rows)}: {reason}."
