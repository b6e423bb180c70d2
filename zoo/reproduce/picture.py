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
            names = [name for name in metrics if name.startswith(f"{split}/{profile}@")]
            points = sorted(
                (int(name.rpartition("@")[2]), 100 * (metrics[name]["mean"] or 0)) for name in names
            )
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=f"{row}: {profile}")
    axes.set(xlabel=table.x_label, ylabel="%")


def _draw_metric(table: Table, rows: Sequence[Row], figures: Figures, axes: Axes) -> None:
    """The metric of the paper's figures, on the test if there is one."""
    name = table.paper_metric.partition("/")[2]
    name = name if name in table.metrics else table.metrics[0]
    split = "test" if any(f"test/{name}" in metrics for metrics in figures.values()) else "val"
    metric, published = f"{split}/{name}", table.paper_metric
    values: dict[str, tuple[float, float]] = {}
    for row in rows:
        figure = figures[row.name].get(metric, {})
        if (mean := figure.get("mean")) is not None:
            values[row.name] = table.percent(metric, mean), table.percent(metric, figure.get("sd") or 0)
    paper = {
        row.name: table.percent(published, row.paper[published]) for row in rows if published in row.paper
    }
    if table.x_label is not None:
        positions = {row.name: row.x for row in rows if row.x is not None}
        _draw_curves(table, rows, values, axes)
    else:
        positions = {row.name: float(number) for number, row in enumerate(rows)}
        means, deviations = ([value[number] for value in values.values()] for number in (0, 1))
        axes.bar([positions[row] for row in values], means, yerr=deviations)
        axes.set_xticks(range(len(rows)), list(positions), rotation=45, ha="right")
        heights = [*means, *paper.values()]
        if name not in table.counts:
            axes.set_ylim(max(0, min(heights, default=0) - 5), min(100, max(heights, default=98) + 2))
    points = [(positions[row], figure) for row, figure in paper.items() if row in positions]
    if points:
        label = table.paper_title(published)
        axes.plot(*zip(*points, strict=True), linestyle="", marker="D", color="black", label=label)
    axes.set_ylabel(f"{SPLITS[split]} {title(name)}{'' if name in table.counts else ', %'}")


def _draw_curves(
    table: Table, rows: Sequence[Row], values: Mapping[str, tuple[float, float]], axes: Axes
) -> None:
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
