"""How a run went, as curves."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from callbacks.chart import write_picture
from callbacks.charts import charts_folder
from callbacks.csv_metrics import CSVMetrics

#: How the columns of `metrics.csv` begin that are drawn: what is trained with, and the learning rates.
_DRAWN = ("train/", "lr-")


class Curves(Callback):
    """Draws the training's columns of `metrics.csv` over the steps, when it ends: `charts/training.png`.

    They are the loss, the throughput and, with `GradientNorms` and `LearningRateMonitor`, the norm of the gradients and
    the learning rates. Dashboards draw their own.
    """

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for logger in trainer.loggers:
            if trainer.is_global_zero and isinstance(logger, CSVMetrics):
                logger.save()
                curves = read_curves(Path(logger.log_dir) / "metrics.csv")
                if curves:
                    write_picture(charts_folder(trainer) / "training.png", partial(_draw, curves))


def read_curves(file: Path) -> dict[str, list[tuple[int, float]]]:
    """What is drawn: name -> (step, value) wherever there is one."""
    curves: dict[str, list[tuple[int, float]]] = {}
    with file.open(newline="", encoding="utf-8") as opened:
        for row in csv.DictReader(opened):
            for name, value in row.items():
                if name.startswith(_DRAWN) and value:
                    curves.setdefault(name, []).append((int(row["step"]), float(value)))
    return dict(sorted(curves.items()))


def _draw(curves: Mapping[str, list[tuple[int, float]]]) -> Any:
    """A matplotlib figure: a panel a curve, over the same steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.6 + 1.5 * len(curves)), layout="constrained")
    panels = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    for axes, (name, points) in zip(panels, curves.items(), strict=True):
        axes.plot(*zip(*points, strict=True), marker=".")
        axes.set_title(name, fontsize="medium")
    panels[-1].set_xlabel("step")
    panels[-1].locator_params(axis="x", integer=True)
    return figure
