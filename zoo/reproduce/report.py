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
from zoo.markdown import markdown_table
from zoo.reproduce.picture import Figures, draw
from zoo.reproduce.table import SPLITS, Row, Table, title


@dataclass(frozen=True)
class Report:
    """A table so far. `Reproduction` makes it after each run."""

    table: Table
    #: rows of the report, in order.
    rows: Sequence[Row]
    #: row -> the metrics of its finished runs.
    results: Mapping[str, Sequence[Mapping[str, float]]]
    #: row, or run -> the reason.
    skipped: Mapping[str, str]
    failed: Mapping[str, str]

    def figures(self) -> Figures:
        """Return means and standard deviations (of the sample) over finished runs."""
        figures: Figures = {}
        for row in self.rows:
            runs = self.results[row.name]
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
        text = "\n".join(self._markdown(figures))
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


def describe_skipped(skipped: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason to skip rows: `skipped` has the reason of each row."""
    for reason in dict.fromkeys(skipped.values()):
        rows = [row for row, why in skipped.items() if why == reason]
        yield f"Skipped: {', '.join(rows)}: {reason}."
