"""Pictures of a recurrent network's values while it reads a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zoo.inspection.keywords import DIRECTIONS, Keywords
from zoo.tasks.retrieval.predictor import ReadText

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Part of a trace -> its name in the paper, in the order in which they are drawn.
PARTS = {
    "input_gate": "i(t), input gate",
    "forget_gate": "f(t), forget gate",
    "cell": "c(t), cell",
    "output_gate": "o(t), output gate",
    "state": "y(t), embedding",
}


def draw_maps(text: ReadText) -> Figure:
    """Draw gates, cells and embedding over the words, a row of maps for each direction (Figs 4, 5, 9 and 10)."""
    parts = [name for name in PARTS if name in text.parts]
    size = text.parts["state"].shape[1] // text.directions
    figure, axes = _figure(text, text.directions, len(parts), 2 + size * text.directions / 40)
    for direction, row in enumerate(axes):
        first = direction * size
        for panel, name in zip(row, parts, strict=True):
            suffix = "" if text.directions == 1 else f", {DIRECTIONS[direction]}"
            values = text.parts[name][:, first : first + size]
            _map(panel, values, first, text, PARTS[name] + suffix, is_gate=name.endswith("gate"))
        row[0].set_ylabel("cell")
    return figure


def draw_active(keywords: Keywords) -> Figure:
    """Draw y of the most active cells over the words, a map for each direction (Figs 6, 11 and 12)."""
    figure, axes = _figure(keywords.text, 1, len(keywords.activities), 3)
    for panel, activity in zip(axes[0], keywords.activities, strict=True):
        title = f"y(t), most active cells, {activity.direction}"
        _map(panel, activity.values, 0, keywords.text, title)
        panel.set_yticks(range(1, len(activity.cells) + 1), activity.cells.tolist(), fontsize=7)
    axes[0, 0].set_ylabel("cell")
    return figure


def _figure(text: ReadText, rows: int, columns: int, height: float) -> tuple[Figure, NDArray[np.object_]]:
    from matplotlib.figure import Figure  # the import takes a second

    width = (1.8 + 0.22 * len(text.words)) * columns
    figure = Figure(figsize=(max(4.0, width), height * rows + 0.5), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _map(
    axes: Axes, values: NDArray[np.float32], first: int, text: ReadText, title: str, is_gate: bool = False
) -> None:
    """Draw values [T, cells] of the cells from `first` on: gates from 0 to 1, others with 0 in the middle."""
    most = float(np.abs(values).max(initial=1e-6))
    low, high, colors = (0.0, 1.0, "viridis") if is_gate else (-most, most, "RdBu_r")
    words, cells = values.shape
    extent = (0.5, words + 0.5, first + 0.5, first + cells + 0.5)
    image = axes.imshow(
        values.T, colors, vmin=low, vmax=high, aspect="auto", interpolation="nearest", origin="lower", extent=extent
    )  # fmt: skip
    labels = [word if len(word) <= 16 else f"{word[:15]}…" for word in text.words]
    axes.set_xticks(range(1, words + 1), labels, rotation=90, fontsize=7)
    axes.set_title(title, fontsize=9)
    axes.figure.colorbar(image, ax=axes)
