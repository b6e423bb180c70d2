"""Pictures of what a recurrent network does while it reads a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datamodules.core.storage import new_file
from zoo.inspection.keywords import DIRECTIONS, Keywords
from zoo.tasks.predictor import ReadText

#: Part of a trace -> its name in the paper; in the order in which they are drawn.
PARTS = {
    "input_gate": "i(t), input gate",
    "forget_gate": "f(t), forget gate",
    "cell": "c(t), cell",
    "output_gate": "o(t), output gate",
    "state": "y(t), embedding",
}


def draw_maps(text: ReadText, path: Path) -> None:
    """Gates, cells and embedding over the words (Figs 4, 5, 9 and 10): a PNG, a row of maps for each direction.

    Gates are drawn from 0 to 1; cells and embedding from their largest magnitude below 0 to that above.
    """
    parts = [name for name in PARTS if name in text.parts]
    figure, axes = _figure(text, text.directions, len(parts), 2 + text.parts["state"].shape[1] / 40)
    for direction in range(text.directions):
        for column, name in enumerate(parts):
            values = text.parts[name]
            size = values.shape[1] // text.directions
            own = values[:, direction * size : (direction + 1) * size]
            most = float(np.abs(own).max(initial=1e-6))
            limits = (0.0, 1.0) if name.endswith("gate") else (-most, most)
            cells = [direction * size + 0.5, (direction + 1) * size + 0.5]
            _map(axes[direction][column], own, cells, limits, text)
            title = PARTS[name] if text.directions == 1 else f"{PARTS[name]}, {DIRECTIONS[direction]}"
            axes[direction][column].set_title(title, fontsize=9)
        axes[direction][0].set_ylabel("cell")
    _save(figure, path)


def draw_active(found: Keywords, path: Path) -> None:
    """y of the most active cells over the words (Figs 6, 11 and 12): a PNG, a map for each direction."""
    figure, axes = _figure(found.text, 1, len(found.activities), 3)
    for ax, activity in zip(axes[0], found.activities, strict=True):
        most = float(np.abs(activity.values).max(initial=1e-6))
        _map(ax, activity.values, [0.5, len(activity.cells) + 0.5], (-most, most), found.text)
        ax.set_yticks(range(1, len(activity.cells) + 1), activity.cells.tolist(), fontsize=7)
        ax.set_title(f"y(t), most active cells, {activity.reads}", fontsize=9)
    axes[0][0].set_ylabel("cell")
    _save(figure, path)


def _figure(text: ReadText, rows: int, columns: int, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # a second, that other commands need not pay

    width = (1.8 + 0.22 * len(text.words)) * columns
    figure = Figure(figsize=(max(4.0, width), height * rows + 0.5), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _map(ax: Any, values: Any, cells: list[float], limits: tuple[float, float], text: ReadText) -> None:
    """Values [T, cells], a column for each word."""
    words = len(text.words)
    image = ax.imshow(
        values.T,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=(0.5, words + 0.5, *cells),
        cmap="viridis" if limits[0] == 0 else "RdBu_r",
        vmin=limits[0],
        vmax=limits[1],
    )
    ax.set_xticks(range(1, words + 1), [_shown(word) for word in text.words], rotation=90, fontsize=7)
    ax.figure.colorbar(image, ax=ax)


def _shown(word: str) -> str:
    """A word as a label: not endless, and no formula."""
    return (word if len(word) <= 16 else f"{word[:15]}…").replace("$", r"\$")


def _save(figure: Any, path: Path) -> None:
    with new_file(path) as partial:
        figure.savefig(partial, format="png", dpi=120)
