"""A page of tables and curves: one HTML file that opens from disk and loads nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from html import escape

from callbacks.pictures import png
from zoo.comparison.curves import draw_curves
from zoo.comparison.table import Comparison, Table

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
td:first-child { text-align: left; }
tr:first-child { font-weight: bold; }
img { max-width: 100%; }
"""


def page(comparisons: Sequence[Comparison]) -> str:
    """Return the page as HTML, a section for each comparison."""
    sections = "\n".join(_section(comparison) for comparison in comparisons)
    title = f"{sum(len(comparison.runs) for comparison in comparisons)} runs"
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>
<body>
<h1>{title}</h1>
<p>Settings in which the runs differ, and the figures of each run's best epoch, a dot. Epochs count from 1. Runs that
differ by their seed alone have one curve, their mean, with a band of one standard deviation.</p>
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
        picture = b64encode(png(partial(draw_curves, comparison.settings, metrics))).decode()
        parts.append(f'<img alt="curves" src="data:image/png;base64,{picture}">')
    return "\n".join(["<section>", *parts, "</section>"])


def _html(table: Table) -> str:
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table]
    return "\n".join(["<table>", *(f"<tr>{row}</tr>" for row in rows), "</table>"])
