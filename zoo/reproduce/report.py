"""Reports of a table as JSON and Markdown, with the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from zoo.markdown import markdown_table
from zoo.reproduce.table import SPLITS, Row, Table, title

#: row -> metric -> mean, sd, n (runs in them), paper (the paper's figure); None where there is none.
Figures: TypeAlias = dict[str, dict[str, dict[str, float | None]]]
#: row -> the metrics of its finished runs.
Results: TypeAlias = Mapping[str, Sequence[Mapping[str, float]]]


def figures_of(rows: Sequence[Row], results: Results) -> Figures:
    """Return means and standard deviations (of the sample) over finished runs."""
    figures: Figures = {}
    for row in rows:
        runs = results[row.name]
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


def report_lines(table: Table, rows: Sequence[Row], figures: Figures, results: Results) -> Iterator[str]:
    """Yield the lines of a report in Markdown, in percent."""
    columns = {f"{key}/{name}": f"{SPLITS[key]} {title(name)}" for key in SPLITS for name in table.metrics}
    metrics = [metric for metric in columns if any(metric in row for row in figures.values())]
    papers = list(dict.fromkeys(metric for row in rows for metric in row.paper))
    lines = [["row", *(columns[metric] for metric in metrics), *map(table.paper_title, papers), "runs"]]
    for row in rows:
        cells = [_cell(table, metric, figures[row.name].get(metric, {})) for metric in metrics]
        cells += [_cell(table, metric, {"mean": row.paper.get(metric)}) for metric in papers]
        lines.append([row.name, *cells, str(len(results[row.name]))])
    yield f"# {table.name}\n\n{table.description}\n\n{markdown_table(lines)}"
    counts = ", ".join(title(name) for name in table.metrics if name in table.counts)
    unit = f"Percent, but {counts} are numbers" if counts else "Percent"
    yield f"{unit}; mean ± standard deviation over seeds. Epochs are chosen on validation rows."
    if any(row.grow_from for row in rows):
        yield "Where a memory grew, the model is another row's, tuned on the validation rows."


def _cell(table: Table, metric: str, figure: Mapping[str, float | None]) -> str:
    mean, sd = figure.get("mean"), figure.get("sd")
    if mean is None:
        return ""
    spread = "" if sd is None else f" ± {table.percent(metric, sd):.1f}"
    return f"{table.percent(metric, mean):.1f}{spread}"


def describe_skipped(skipped: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason to skip rows: `skipped` has the reason of each row."""
    for reason in dict.fromkeys(skipped.values()):
        rows = [row for row, why in skipped.items() if why == reason]
        yield f"Skipped: {', '.join(rows)}: {reason}."
