"""A table of numbers and its picture, for people who look at a run."""

from __future__ import annotations

import csv
import logging
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from datamodules.core.errors import reason
from datamodules.core.storage import new_file

log = logging.getLogger("zoo")

#: Names of more places than this are not written at an axis.
_MOST_NAMES = 120
#: Letters of a name that are written.
_LONGEST_NAME = 40
#: Columns of a map whose numbers can be written into it.
_MOST_WRITTEN = 20
#: Fonts with the letters that matplotlib's own lacks, on Linux, macOS and Windows: Chinese, Japanese, Korean.
_MORE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "PingFang HK",
    "Hiragino Sans GB",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
)


class Chart(NamedTuple):
    """A table of numbers, and how it is drawn."""

    #: of its files.
    name: str
    title: str
    #: names of the columns: of what a line is about, then of its numbers.
    columns: list[str]
    #: lines of the table; a line's first value names it. None: there is no number.
    lines: list[list[Any]]
    #: `lines`: a curve for each column over the first; `bars`: a group of bars for each line; `map`: a coloured
    #: field for each number.
    kind: Literal["lines", "bars", "map"]
    #: what the numbers are: the name of the upright axis, or of the colours.
    value: str
    #: what the columns of a map are.
    across: str = ""
    #: names of the lines, and of a map's columns, that the picture shows; None: all.
    shown: Sequence[str] | None = None
    #: what is marked in a map.
    mark: str = ""
    #: the marked columns of each line, from 0, of a map that shows all; empty: nothing is marked.
    marked: Sequence[Sequence[int]] = ()

    def write(self, folder: Path, epoch: int) -> Path | None:
        """Write `NAME.csv` and `NAME.png`.

        Args:
            folder: is there.
            epoch: that the numbers are of, for the title.

        Returns:
            The picture; None where it could not be drawn, which is logged.
        """
        columns, lines = self.columns, self.lines
        if self.marked:
            columns = [*columns, self.mark]
            marks = (" ".join(self.columns[1 + place] for place in places) for places in self.marked)
            lines = [[*line, mark] for line, mark in zip(lines, marks, strict=True)]
        write_table(folder / f"{self.name}.csv", columns, lines)
        return write_picture(folder / f"{self.name}.png", partial(_draw, self, epoch))


def write_table(file: Path, columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    """Write a CSV file in one step."""
    with new_file(file) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(columns)
        writer.writerows(lines)


def write_picture(file: Path, draw: Callable[[], Any]) -> Path | None:
    """Write a PNG file in one step.

    Args:
        file: the picture.
        draw: makes a matplotlib figure.

    Returns:
        The file. None where drawing failed: that is logged, the picture of before is deleted, and the run goes on,
        because a picture less is no reason to lose its checkpoint.
    """
    try:
        picture = _png(draw)
    except Exception as error:  # whatever matplotlib stumbles over
        log.warning(
            "%s/%s could not be drawn (%s: %s); the run goes on",
            file.parent.name,
            file.name,
            type(error).__name__,
            reason(error),
        )
        log.debug("where it happened", exc_info=True)
        file.unlink(missing_ok=True)
        return None
    with new_file(file) as unfinished:
        unfinished.write_bytes(picture)
    return file


def _png(draw: Callable[[], Any]) -> bytes:
    """A picture in which `$` begins no formula, with letters of other fonts where matplotlib's own lacks them."""
    from matplotlib import font_manager, rc_context  # a second, that other runs need not pay

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in _MORE_FONTS if font in installed)]
    file = BytesIO()
    with (
        rc_context({"text.parse_math": False, "font.family": fonts}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        draw().savefig(file, format="png", dpi=120)
    for warning in caught:
        if str(warning.message).startswith("Glyph"):
            _tell_of_boxes()
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return file.getvalue()


@cache
def _tell_of_boxes() -> None:
    """Once a process."""
    log.warning(
        "charts: no font on this machine has some letters of the texts, which are drawn as boxes; the CSV files have"
        " them. For Chinese, Japanese and Korean install Noto Sans CJK"
    )


def _draw(chart: Chart, epoch: int) -> Any:
    """A matplotlib figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(f"{chart.title}\nepoch {epoch}", fontsize="medium")
    lines = [line for line in chart.lines if chart.shown is None or line[0] in chart.shown]
    if chart.kind == "map":
        _draw_map(chart, lines, figure, axes)
        return figure
    axes.set_xlabel(chart.columns[0])
    axes.set_ylabel(chart.value)
    names, numbers = [line[0] for line in lines], np.array([line[1:] for line in lines], float)
    curves = list(zip(chart.columns[1:], numbers.T, strict=True))
    if chart.kind == "lines":
        for name, values in curves:
            axes.plot(names, values, marker=".", label=name)
        axes.set_xlim(names[0] - 0.5, names[-1] + 0.5)
        axes.locator_params(axis="x", integer=True)
    else:
        figure.set_figwidth(max(7, 1.5 + 0.35 * len(names)))
        width = 0.8 / len(curves)
        for number, (name, values) in enumerate(curves):
            places = np.arange(len(names)) + (number - (len(curves) - 1) / 2) * width
            axes.bar(places, values, width, label=name)
        figure.set_figheight(4.5 + _name(axes, "x", names))
    # From 0, and a flat curve lies below the frame.
    axes.set_ylim(1.05 * min(0.0, np.nanmin(numbers)), 1.05 * max(np.nanmax(numbers), 1e-9))
    if len(curves) > 1:
        figure.legend(loc="outside lower center")
    return figure


def _draw_map(chart: Chart, lines: list[list[Any]], figure: Any, axes: Any) -> None:
    places = [
        place for place, name in enumerate(chart.columns[1:]) if chart.shown is None or name in chart.shown
    ]
    numbers = np.array([[line[1 + place] for place in places] for line in lines], float)  # None becomes NaN
    counts = all(isinstance(value, int) for line in lines for value in line[1:])
    # From 0, so that what is alike looks alike; and the few largest numbers set no scale: a text with one memory gives
    # it all of the weight.
    low, high = (0, np.nanmax(numbers)) if counts else np.nanpercentile(numbers, (2, 98))
    colours, ends = "Blues", "neither" if counts else "max"
    if low < 0:
        high = max(-low, high)
        low, colours, ends = -high, "RdBu", "both"
    image = axes.imshow(numbers, colours, aspect="auto", interpolation="nearest", vmin=min(0, low), vmax=high)
    figure.colorbar(image, label=chart.value, extend=ends)
    down = _name(axes, "y", [line[0] for line in lines])
    across = _name(axes, "x", [chart.columns[1 + place] for place in places])
    figure.set_size_inches(
        max(7, 2 + down + 0.3 * min(len(places), _MOST_NAMES)),
        max(3.5, 1.5 + across + 0.25 * min(len(lines), _MOST_NAMES)),
    )
    legend = [chart.across]
    if np.isnan(numbers).any():
        axes.set_facecolor("0.85")
        legend.append("grey: none")
    marks = [(place, row) for row, line in enumerate(chart.marked) for place in line]
    if marks:
        axes.scatter(*zip(*marks, strict=True), s=14, color="tab:orange")
        legend.append(f"dot: {chart.mark}")
    axes.set_xlabel("; ".join(legend))
    axes.set_ylabel(chart.columns[0])
    if counts and len(places) <= _MOST_WRITTEN:
        for (row, column), count in np.ndenumerate(numbers):
            colour = "white" if count > high / 2 else "black"
            axes.text(column, row, f"{count:.0f}", color=colour, ha="center", va="center", fontsize=8)


def _name(axes: Any, axis: Literal["x", "y"], names: list[Any]) -> float:
    """Write names at an axis, where they can be read; the inches that they take."""
    if len(names) > _MOST_NAMES:
        return 0.0
    shown = [_short(str(name)) for name in names]
    longest = max(map(len, shown))
    turned = {"rotation": 90} if axis == "x" and longest > 2 and longest * len(names) > 40 else {}
    getattr(axes, f"set_{axis}ticks")(range(len(names)), shown, **turned)
    return 0.08 * longest if axis == "y" or turned else 0.2


def _short(name: str) -> str:
    """Without the middle, if it is long: names that begin alike stay distinct."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"
