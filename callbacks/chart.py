"""Tables of numbers and their pictures, by matplotlib."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from datamodules.core.errors import reason
from datamodules.core.outputs import spreadsheet_cells, write_csv
from datamodules.core.storage import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger("zoo")

#: What a table holds; None = no value.
Cell: TypeAlias = "str | int | float | None"

#: An axis with more names than this has none.
_MOST_NAMES = 120
#: Longer names are cut.
_LONGEST_NAME = 40
#: Fonts on Linux, macOS and Windows with letters that matplotlib's own lacks: Chinese, Japanese, Korean.
_MORE_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Droid Sans Fallback",
    "Arial Unicode MS", "Apple SD Gothic Neo", "Microsoft YaHei", "Malgun Gothic",
)  # fmt: skip


class Chart(NamedTuple):
    """A table of numbers and how to draw it."""

    #: stem of its files.
    name: str
    title: str
    #: names of the columns; the first one holds the names of the rows.
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    #: `lines`: a curve for each column over the first one; `map`: a colored field for each number.
    kind: Literal["lines", "map"]
    #: what the numbers are: the title of the vertical axis or of the color bar.
    value: str
    #: title of a map's columns.
    across: str = ""
    #: what the marked fields of a map have in common.
    mark: str = ""
    #: for each row of a map, the columns of its marked fields, from 0; empty: nothing is marked.
    marked: Sequence[Sequence[int]] = ()

    def write(self, folder: Path, epoch: int | None = None) -> Path | None:
        """Write `NAME.csv` and `NAME.png`, and return the latter; None if drawing failed, which is logged."""
        columns, rows = [*self.columns], [[*row] for row in self.rows]
        if self.marked:
            columns.append(self.mark)
            for row, marked in zip(rows, self.marked, strict=True):
                row.append(" ".join(self.columns[1 + column] for column in marked))
        write_table(folder / f"{self.name}.csv", columns, rows)
        file = folder / f"{self.name}.png"
        try:
            picture = _png(self, epoch)
        except Exception as error:  # anything that matplotlib raises
            where = f"{folder.name}/{file.name}"
            log.warning("skipped picture %s: %s: %s", where, type(error).__name__, reason(error))
            log.debug("traceback", exc_info=True)
            file.unlink(missing_ok=True)
            return None
        with new_file(file) as unfinished:
            unfinished.write_bytes(picture)
        return file


def write_table(file: Path, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Write a CSV file in one step."""
    write_csv(file, [columns, *map(spreadsheet_cells, rows)])


def _png(chart: Chart, epoch: int | None) -> bytes:
    """Draw a figure in which `$` begins no formula; letters that no font of the machine has become boxes."""
    from matplotlib import font_manager, rc_context  # the import takes a second

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in _MORE_FONTS if font in installed)]
    file = BytesIO()
    with rc_context({"text.parse_math": False, "font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        _draw(chart, epoch).savefig(file, format="png", dpi=120)
    return file.getvalue()


def _draw(chart: Chart, epoch: int | None) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    title = chart.title if epoch is None else f"{chart.title}\nepoch {epoch}"
    figure.suptitle(title, fontsize="medium")
    draw = _draw_map if chart.kind == "map" else _draw_lines
    draw(chart, figure, figure.subplots())
    return figure


def _draw_lines(chart: Chart, figure: Figure, axes: Axes) -> None:
    first, *curves = np.array(chart.rows, float).T
    for name, values in zip(chart.columns[1:], curves, strict=True):
        axes.plot(first, values, marker=".", label=name)
    axes.set_xlabel(chart.columns[0])
    axes.set_ylabel(chart.value)
    if (first == first.round()).all():
        axes.set_xlim(first[0] - 0.5, first[-1] + 0.5)
        axes.locator_params(axis="x", integer=True)
    # The axis starts at 0 and ends above the highest value, so that a flat curve is not on the frame.
    axes.set_ylim(1.05 * min(0.0, np.nanmin(curves)), 1.05 * max(np.nanmax(curves), 1e-9))
    if len(curves) > 1:
        figure.legend(loc="outside lower center")


def _draw_map(chart: Chart, figure: Figure, axes: Axes) -> None:
    numbers = np.array([row[1:] for row in chart.rows], float)  # None becomes NaN
    # The largest 2 % set no scale: a text with a single memory gives it all of the weight.
    low, high = np.nanpercentile(numbers, (2, 98))
    # The scale starts at 0, unless all numbers are far from it.
    start, colors, ends = 0.0, "Blues", "max"
    if high / 4 < low < high:
        start, ends = low, "both"
    if low < 0:
        high = max(-low, high)
        start, colors, ends = -high, "RdBu", "both"
    image = axes.imshow(numbers, colors, aspect="auto", interpolation="nearest", vmin=start, vmax=high)
    figure.colorbar(image, label=chart.value, extend=ends)
    down = _name(axes, "y", [row[0] for row in chart.rows])
    across = _name(axes, "x", chart.columns[1:])
    figure.set_size_inches(
        max(7, 2 + down + 0.3 * min(numbers.shape[1], _MOST_NAMES)),
        max(3.5, 1.5 + across + 0.25 * min(numbers.shape[0], _MOST_NAMES)),
    )
    legend = [chart.across]
    if np.isnan(numbers).any():
        axes.set_facecolor("0.85")
        legend.append("gray: none")
    marks = np.array([(column, row) for row, columns in enumerate(chart.marked) for column in columns])
    if len(marks):
        axes.scatter(marks[:, 0], marks[:, 1], s=14, color="tab:orange")
        legend.append(f"dot: {chart.mark}")
    axes.set_xlabel("; ".join(legend))
    axes.set_ylabel(chart.columns[0])


def _name(axes: Axes, axis: Literal["x", "y"], names: Sequence[Cell]) -> float:
    """Write readable names at an axis; return the inches that they take."""
    if len(names) > _MOST_NAMES:
        return 0.0
    texts = map(str, names)
    labels = [text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…" for text in texts]
    longest = max(map(len, labels))
    is_upright = axis == "x" and longest > 2 and longest * len(labels) > 40
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    set_ticks(range(len(labels)), labels, rotation=90 if is_upright else 0)
    return 0.08 * longest if axis == "y" or is_upright else 0.2
