"""Curves over epochs: of compared runs, and of one run's training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zoo.comparison.table import Setting
from zoo.saving.run_folder import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: With ten colors, 50 lines differ.
_DASHES = ("-", "--", ":", "-.", (0, (9, 3)))


def draw_curves(settings: Sequence[Setting], metrics: Sequence[str]) -> Figure:
    """Draw a panel for each metric: a curve for each setting over its epochs, with a dot at each run's best epoch."""
    from cycler import cycler
    from matplotlib import color_sequences
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3 * len(metrics) + 0.22 * len(settings)), layout="constrained")
    panels = figure.subplots(len(metrics), squeeze=False)[:, 0]
    for panel, metric in zip(panels, metrics, strict=True):
        panel.set_prop_cycle(cycler(linestyle=_DASHES) * cycler(color=color_sequences["tab10"]))
        for setting in settings:
            _draw_setting(panel, setting, metric)
        runs = [run for setting in settings for run in setting.runs]
        panel.set(title=metric, xlabel="epoch", ylim=_limits(runs, metric))
        panel.locator_params(axis="x", integer=True)
    titles = [setting.title for setting in settings]
    figure.legend(panels[0].lines[::2], titles, loc="outside lower center")
    return figure


def _draw_setting(panel: Axes, setting: Setting, metric: str) -> None:
    """Draw the mean over the runs that have an epoch, and a band of one standard deviation."""
    values: dict[int, list[float]] = {}
    for run in setting.runs:
        for epoch, value in run.curve(metric):
            values.setdefault(epoch, []).append(value)
    epochs = sorted(values)
    mean = np.array([np.mean(values[epoch]) for epoch in epochs])
    (line,) = panel.plot(epochs, mean)
    if len(setting.runs) > 1:
        spread = [np.std(values[epoch], ddof=1) if len(values[epoch]) > 1 else 0.0 for epoch in epochs]
        panel.fill_between(
            epochs, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0
        )
    best = [(epoch, figures.get(metric, np.nan)) for epoch, figures in (run.best() for run in setting.runs)]
    panel.plot(*_points(best), "o", markersize=5, color=line.get_color())


def draw_training(run: Run, metrics: Sequence[str]) -> Figure:
    """Draw the losses and metrics of the validation rows over the epochs of a run.

    An epoch without a training loss, in which a `MemoryEnsemble` fits its members, is a single point.
    """
    from matplotlib.figure import Figure

    losses = run.curve("train/loss_epoch")
    last = losses[-1][0] if losses else math.inf
    panels = [metric for metric in ("val/loss", *metrics) if run.curve(metric)] or ["val/loss"]
    figure = Figure(figsize=(1 + 4.5 * len(panels), 3.5), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if metric == "val/loss":
            axes.plot(*_points(losses), marker=".", color="0.45", label="training")
        curve = run.curve(metric)
        trained = [point for point in curve if point[0] <= last]
        axes.plot(*_points(trained), marker=".", color="tab:blue", label="validation")
        if fitted := curve[len(trained) :]:
            axes.plot(*_points(fitted), "*", color="tab:red", label="validation, all members")
        if run.monitor is not None:
            axes.axvline(run.best()[0], color="0.8", zorder=0, label="best epoch")
        axes.set(xlabel="epoch", ylabel=metric.partition("/")[2])
        axes.locator_params(axis="x", integer=True)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _points(curve: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Epochs and values."""
    return [epoch for epoch, _ in curve], [value for _, value in curve]


def _limits(runs: Sequence[Run], metric: str) -> tuple[float, float]:
    """Ends of the vertical axis: at most twice the median run's range, so that diverging runs flatten no others."""
    sign = 1 if runs[0].lower_is_better(metric) else -1
    curves = [[sign * value for _, value in curve] for run in runs if (curve := run.curve(metric))]
    best, worst = min(map(min, curves)), sorted(map(max, curves))
    end = min(best + 2 * (worst[(len(worst) - 1) // 2] - best), worst[-1])
    margin = (end - best) / 20 or abs(best) / 10 or 0.5
    low, high = sorted((sign * (best - margin), sign * (end + margin)))
    return low, high
