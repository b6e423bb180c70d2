"""Reports of a table as JSON, Markdown and a picture, with the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from callbacks.pictures import write_picture
from datamodules.core.errors import visible
from datamodules.core.storage import write_json, write_text
from datamodules.core.types import PlainDict
from zoo.markdown import markdown_table
from zoo.reproduce.picture import Figures, draw
from zoo.reproduce.significance import compare, mean_by_query
from zoo.reproduce.table import SPLITS, Row, Table, title


@dataclass(frozen=True)
class Report:
    """A table so far."""

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
        lines = map(visible, text.split("\n"))
        write_text(out / "table.md", "\n".join(lines) + "\n")

    def write_plot(self, out: Path) -> None:
        """Write `table.png`."""
        write_picture(out / "table.png", partial(draw, self.table, self.rows, self.figures()))

    def _markdown(self, figures: Figures) -> Iterator[str]:
        """The table in percent, skipped rows and failed runs."""
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
        if any(row.grow for row in self.rows):
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
        """Each row against the one that the table names, query by query; nothing where it names none."""
        other = self.table.compare_with
        if other is None:
            return
        lines = [["row", "difference", "p", "queries"]]
        for row in self.rows:
            difference = compare(self._queries(row.name), self._queries(other))
            if row.name != other and difference is not None:
                mean, p, queries = difference
                lines.append([row.name, f"{100 * mean:+.1f}", f"{p:.4f}", str(queries)])
        if len(lines) > 1:
            yield f"\n## Against {other}, test\n\n{markdown_table(lines)}"
            yield (
                "Mean difference over queries of each query's mean over seeds, in percent; p of a paired"
                " randomization test with two sides (10,000 draws)."
            )

    def _queries(self, row: str) -> dict[str, float]:
        """Each query's mean over the runs of a row."""
        return mean_by_query([run["queries"] for run in self.results.get(row, ()) if run["queries"]])


def describe_skipped(skipped: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason to skip rows: `skipped` has the reason of each row."""
    for reason in dict.fromkeys(skipped.values()):
        rows = [row for row, why in skipped.items() if why == reason]
        yield f"Skipped: {', '.join(rows)}: {reason}."
