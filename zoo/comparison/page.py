"""A page of tables and curves: one HTML file that opens from disk and loads nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from callbacks.pictures import png
from zoo.comparison.runs import Run
from zoo.comparison.table import Comparison, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
td:first-child { text-align: left; }
tr:first-child { font-weight: bold; }
img { max-width: 100%; }
"""
#: With ten colors, 50 lines differ.
_DASHES = ("-", "--", ":", "-.", (0, (9, 3)))


def page(comparisons: Sequence[Comparison]) -> str:
    """Return the page as HTML, a section for each comparison."""
    sections = "\n".join(_section(comparison) for comparison in comparisons)
    title = f"{sum(len(comparison.runs) for comparison in comparisons)} runs"
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>
<body>
<h1>{title}</h1>
<p>Settings in which the runs differ, and the figures of each run's best epoch, the dot on its curve. Epochs count from
1.</p>
{sections}
</body>
</html>
"""


def _section(comparison: Comparison) -> str:
    parts = [f"<h2>{escape(comparison.title)}</h2>"]
    if comparison.means is not None:
        parts += ["<h3>Means ± standard deviations over seeds</h3>", _html(comparison.means), "<h3>Runs</h3>"]
    parts.append(_html(comparison.table))
    # Figures of a single epoch are in the table.
    metrics = [m for m in comparison.metrics if any(len(run.curve(m)) > 1 for run in comparison.runs)]
    if metrics:
        picture = b64encode(png(partial(draw_curves, comparison.runs, metrics))).decode()
        parts.append(f'<img alt="curves" src="data:image/png;base64,{picture}">')
    return "\n".join(["<section>", *parts, "</section>"])


def _html(table: Table) -> str:
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table]
    return "\n".join(["<table>", *(f"<tr>{row}</tr>" for row in rows), "</table>"])


def draw_curves(runs: Sequence[Run], metrics: Sequence[str]) -> Figure:
    """Draw a panel for each metric: a curve for each run over its epochs, with a dot at its best epoch."""
    from cycler import cycler
    from matplotlib import color_sequences
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3 * len(metrics) + 0.22 * len(runs)), layout="constrained")
    panels = figure.subplots(len(metrics), squeeze=False)[:, 0]
    for panel, metric in zip(panels, metrics, strict=True):
        panel.set_prop_cycle(cycler(linestyle=_DASHES) * cycler(color=color_sequences["tab10"]))
        for run in runs:
            (line,) = panel.plot(*np.array(run.curve(metric)).reshape(-1, 2).T)
            epoch, figures = run.best()
            panel.plot(epoch, figures.get(metric, np.nan), "o", color=line.get_color())
        panel.set(title=metric, xlabel="epoch", ylim=_limits(runs, metric))
        panel.locator_params(axis="x", integer=True)
    figure.legend(panels[0].lines[::2], [run.name for run in runs], loc="outside lower center")
    return figure


def _limits(runs: Sequence[Run], metric: str) -> tuple[float, float]:
    """Ends of the vertical axis: at most twice the median run's range, so that diverging runs flatten no others."""
    sign = 1 if runs[0].lower_is_better(metric) else -1
    curves = [[sign * value for _, value in curve] for run in runs if (curve := run.curve(metric))]
    best, worst = min(map(min, curves)), sorted(map(max, curves))
    end = min(best + 2 * (worst[(len(worst) - 1) // 2] - best), worst[-1])
    margin = (end - best) / 20 or abs(best) / 10 or 0.5
    low, high = sorted((sign * (best - margin), sign * (end + margin)))
    return low, high
