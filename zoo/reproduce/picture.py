"""The picture of a table: bars with the paper's figures as diamonds, or curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from zoo.reproduce.table import SPLITS, Row, Table, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: row -> metric -> mean, sd, n (runs in them), paper (the paper's figure); None where there is none.
Figures: TypeAlias = dict[str, dict[str, dict[str, float | None]]]
#: row -> mean and standard deviation as they are drawn.
Values: TypeAlias = Mapping[str, tuple[float, float]]


def draw(table: Table, rows: Sequence[Row], figures: Figures) -> Figure:
    """Draw the rows of a table."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row.plot]
    is_curve = table.x_label is not None
    figure = Figure(figsize=(9 if is_curve else max(6, 0.75 * len(rows)), 4), layout="constrained")
    axes = figure.subplots()
    if table.profiles:
        _draw_profiles(table, figures, axes)
    else:
        _draw_metric(table, rows, figures, axes)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right center")
    return figure


def _draw_profiles(table: Table, figures: Figures, axes: Axes) -> None:
    """A curve for each row and profile, over the positions of its list."""
    for row, metrics in figures.items():
        split = "test" if any(metric.startswith("test/") for metric in metrics) else "val"
        for profile in table.profiles:
            start = f"{split}/{profile}@"
            means = {
                int(name.removeprefix(start)): metrics[name]["mean"] for name in metrics if start in name
            }
            positions = sorted(means)
            if positions:
                heights = [100 * (means[position] or 0) for position in positions]
                axes.plot(positions, heights, marker=".", label=f"{row}: {profile}")
    axes.set_xlabel(table.x_label or "")
    axes.set_ylabel("%")


def _draw_metric(table: Table, rows: Sequence[Row], figures: Figures, axes: Axes) -> None:
    """The paper's metric, of the test if there is one."""
    name = table.paper_metric.partition("/")[2]
    name = name if name in table.metrics else table.metrics[0]
    split = "test" if any(f"test/{name}" in metrics for metrics in figures.values()) else "val"
    metric = f"{split}/{name}"
    values = {
        row.name: (table.percent(metric, figure["mean"]), table.percent(metric, figure["sd"] or 0))
        for row in rows
        if (figure := figures[row.name].get(metric)) is not None and figure["mean"] is not None
    }
    paper = {
        row.name: table.percent(table.paper_metric, row.paper[table.paper_metric])
        for row in rows
        if table.paper_metric in row.paper
    }
    if table.x_label is not None:
        positions = {row.name: row.x for row in rows if row.x is not None}
        _draw_curves(table, rows, values, axes)
    else:
        positions = {row.name: float(number) for number, row in enumerate(rows)}
        _draw_bars(positions, values, axes)
        heights = [*(mean for mean, _ in values.values()), *paper.values()]
        if name not in table.counts:
            axes.set_ylim(max(0, min(heights, default=0) - 5), min(100, max(heights, default=98) + 2))
    marked = [row for row in paper if row in positions]
    if marked:
        x, y = [positions[row] for row in marked], [paper[row] for row in marked]
        label = table.paper_title(table.paper_metric)
        axes.plot(x, y, linestyle="", marker="D", color="black", label=label)
    axes.set_ylabel(f"{SPLITS[split]} {title(name)}{'' if name in table.counts else ', %'}")


def _draw_curves(table: Table, rows: Sequence[Row], values: Values, axes: Axes) -> None:
    """Rows with a position on the x axis as curves, the others as horizontal lines."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        if row.x is not None and row.name in values:
            curves.setdefault(row.curve or table.name, []).append((row.x, *values[row.name]))
    for curve, points in curves.items():
        x, means, deviations = zip(*sorted(points), strict=True)
        axes.errorbar(x, means, deviations, marker="o", capsize=3, label=curve)
    others = [row.name for row in rows if row.x is None and row.name in values]
    for number, name in enumerate(others, start=len(curves)):
        axes.axhline(values[name][0], linestyle="--", color=f"C{number}", label=name)
    axes.set_xlabel(table.x_label or "")


def _draw_bars(positions: Mapping[str, float], values: Values, axes: Axes) -> None:
    means, deviations = ([value[number] for value in values.values()] for number in (0, 1))
    axes.bar([positions[name] for name in values], means, yerr=deviations)
    axes.set_xticks(range(len(positions)), list(positions), rotation=45, ha="right")
