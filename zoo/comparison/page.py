"""A page of tables and curves, in one file that opens from disk."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from zoo.comparison.table import Comparison, Mean, Table, shown

#: A run is known by its colour and its dashes: 50 of them differ.
_COLOURS = (
    "#1f77b4", "#e6550d", "#2ca02c", "#9467bd", "#d62728", "#17a2b8", "#c7920a", "#e377c2", "#8c6d5a", "#7f7f7f",
)  # fmt: skip
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4")
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 40
#: How far an axis reaches: so many times as far from the best value as the worst of the middle run.
_FARTHEST = 2


def page(comparisons: Sequence[Comparison]) -> str:
    """The page as HTML; style and script are in it, and it loads nothing.

    Args:
        comparisons: each becomes a section with its tables and a chart for each metric.
    """
    names = [run.name for one in comparisons for run in one.runs]
    number, folder, here = len(names), _shared_folder(names), Path(__file__)
    sections = "\n".join(_section(one, folder, with_title=len(comparisons) > 1) for one in comparisons)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{number} runs</title>
<style>
{here.with_name("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<h1>{number} runs{f" in {escape(folder)}" if folder else ""}</h1>
<p>The settings in which the runs differ, and the figures of each run's best epoch, the dot on its curve. Epochs are
counted from 1.</p>
{sections}
<script>
{here.with_name("page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _section(one: Comparison, folder: str, with_title: bool) -> str:
    numbers = {run.name: number for number, run in enumerate(one.runs)}
    parts = [f"<h2>{escape(one.title)}</h2>"] if with_title else []
    if one.means is not None:
        parts += ["<h3>Means ± standard deviations over seeds</h3>", _table(one.means, numbers, folder)]
        parts += ["<h3>Runs</h3>"]
    charts = "\n".join(_chart(metric, one, folder) for metric in one.metrics)
    parts += [_table(one.table, numbers, folder), f'<div class="charts">\n{charts}\n</div>']
    body = "\n".join(parts)
    return f"<section>\n{body}\n</section>"


def _table(table: Table, numbers: dict[str, int], folder: str) -> str:
    columns = zip(*(line.cells for line in table.lines), strict=True)
    numeric = [any(isinstance(value, (int, float, Mean)) for value in column) for column in columns]
    kinds = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(table.header, kinds, strict=True))
    lines = []
    for line in table.lines:
        cells = []
        for name, kind, value in zip(table.header, kinds, line.cells, strict=True):
            text, whole = shown(value), str(value)
            if name == "run":
                text = f"{_swatch(numbers[whole])}{escape(whole.removeprefix(folder))}"
            else:
                text, whole = escape(text), whole if isinstance(value, str) and text != whole else ""
            title = f' title="{escape(whole)}"' if whole else ""
            cells.append(f"<td{kind}{title}>{text}</td>")
        runs = " ".join(str(numbers[run.name]) for run in line.runs)
        lines.append(f'<tr data-runs="{runs}">{"".join(cells)}</tr>')
    body = "\n".join(lines)
    inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return f'<div class="frame {"runs" if table.header[0] == "run" else "means"}"><table>\n{inner}\n</table></div>'


def _shared_folder(names: Sequence[str]) -> str:
    """The folder that all runs lie in, if they have one: names are shorter without it."""
    folders = [os.path.dirname(name) for name in names]
    shared = os.path.commonpath(folders) if len({os.path.isabs(name) for name in names}) == 1 else ""
    return os.path.join(shared, "") if shared else ""


def _pen(number: int) -> str:
    """The attributes of a run's line."""
    dashes = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'stroke="{_COLOURS[number % len(_COLOURS)]}"{dashed}'


def _swatch(number: int) -> str:
    return f'<svg viewBox="0 0 34 8"><path d="M0 4H34" stroke-width="3" {_pen(number)}/></svg>'


# --- charts ---


class Frame(NamedTuple):
    """Which epochs and values a chart shows, and where on it they lie."""

    first: int
    last: int
    low: float
    high: float

    def across(self, epoch: float) -> float:
        """Of the drawing's units, from its left."""
        return _LEFT + (epoch - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def down(self, value: float) -> float:
        """Of the drawing's units, from its top; what is beyond the frame lies on its edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _chart(metric: str, one: Comparison, folder: str) -> str:
    """The curves of a metric over the epochs; "" where no run has numbers of two, and the table says all."""
    curves = [[point for point in run.curve(metric) if math.isfinite(point[1])] for run in one.runs]
    epochs = [epoch for curve in curves for epoch, _ in curve]
    first, last = min(epochs, default=0), max(epochs, default=0)
    if first == last:
        return ""
    lower_is_better = one.runs[0].lower_is_better(metric)
    low, high, note = _range([[value for _, value in curve] for curve in curves if curve], lower_is_better)
    frame = Frame(first, last, low, high)
    parts = [*_axes(frame)]
    for number, (run, curve) in enumerate(zip(one.runs, curves, strict=True)):
        if curve:
            epoch, figures = run.best()
            best = (epoch or 0, figures.get(metric, math.nan))
            parts.append(_curve(run.name.removeprefix(folder), number, curve, best, frame))
    drawing = "\n".join(parts)
    return (
        f"<figure><figcaption>{escape(metric)}{note}</figcaption>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">\n{drawing}\n</svg></figure>'
    )


def _curve(
    name: str, number: int, curve: Sequence[tuple[int, float]], best: tuple[int, float], frame: Frame
) -> str:
    """A run's curve, with a dot at its best epoch."""
    points = " ".join(f"{frame.across(epoch):.1f},{frame.down(value):.1f}" for epoch, value in curve)
    values = " ".join(f"{epoch}:{shown(value)}" for epoch, value in curve)
    dot = ""
    if math.isfinite(best[1]):
        at = f'cx="{frame.across(best[0]):.1f}" cy="{frame.down(best[1]):.1f}"'
        dot = f'<circle {at} r="4" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
    return (
        f'<g data-runs="{number}" data-name="{escape(name)}" {_pen(number)}>'
        f"<title>{escape(name)}: {shown(best[1])} in epoch {best[0]}</title>"
        f'<polyline points="{points}" data-values="{values}"/>{dot}</g>'
    )


def _range(values: Sequence[Sequence[float]], lower_is_better: bool) -> tuple[float, float, str]:
    """Where the axis of values begins and ends, and a note on values beyond.

    One run that diverges must not flatten the others: of the runs' worst values, the axis reaches not much farther
    than the middle one.

    Args:
        values: of each run.
        lower_is_better: which end is the better one.
    """
    low, high = min(map(min, values)), max(map(max, values))
    if low == high:
        around = abs(low) / 10 or 0.5
        return low - around, high + around, ""
    best, worst = (low, high) if lower_is_better else (high, low)
    worsts = sorted(map(max if lower_is_better else min, values), reverse=not lower_is_better)
    end = best + _FARTHEST * (worsts[(len(worsts) - 1) // 2] - best)
    if end == best or abs(worst - best) <= abs(end - best):
        return low, high, ""
    side = "above" if lower_is_better else "below"
    note = f" <small>(values {side} {shown(end)}, as far as {shown(worst)}, lie on the edge)</small>"
    return min(best, end), max(best, end), note


def _axes(frame: Frame) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value, label in _ticks(frame.low, frame.high):
        down = frame.down(value)
        yield f'<path class="grid" d="M{_LEFT} {down:.1f}H{right}"/>'
        yield f'<text x="{_LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{label}</text>'
    for epoch, _ in _ticks(frame.first, frame.last):
        if epoch.is_integer():
            yield f'<text x="{frame.across(epoch):.1f}" y="{bottom + 17}" text-anchor="middle">{epoch:.0f}</text>'
    yield f'<text x="{right}" y="{_HEIGHT - 5}" text-anchor="end">epoch</text>'


def _ticks(low: float, high: float) -> Iterator[tuple[float, str]]:
    """Some five round numbers from one to another, and how they are written."""
    least = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= least)
    decimals = max(0, -math.floor(math.log10(step)))
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield number * step, f"{number * step:,.{decimals}f}"
