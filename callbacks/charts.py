"""What a model does with validation rows, as tables and pictures."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from datamodules.storage import new_file

#: Names of more places than this are not written at an axis.
_MOST_NAMES = 40


class Chart(NamedTuple):
    """A table of numbers, and how it is drawn."""

    #: of its files.
    name: str
    title: str
    #: names of the columns: of what a line is about, then of its numbers.
    columns: list[str]
    #: lines of the table; a line's first value names it.
    lines: list[list[Any]]
    #: `lines`: a curve for each column over the first; `bars`: a group of bars for each line; `map`: a coloured
    #: field for each number.
    kind: Literal["lines", "bars", "map"]

    def draw(self) -> Any:
        """A matplotlib figure."""
        from matplotlib.figure import Figure  # a second, that other runs need not pay

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.set_title(self.title)
        names, numbers = [line[0] for line in self.lines], [line[1:] for line in self.lines]
        if self.kind == "map":
            image = axes.imshow(numbers, aspect="auto", cmap="Blues", interpolation="nearest")
            figure.colorbar(image)
            _name(axes, "x", self.columns[1:])
            _name(axes, "y", names)
            axes.set_ylabel(self.columns[0])
            return figure
        axes.set_xlabel(self.columns[0])
        width = 0.8 / max(1, len(self.columns) - 1)
        for number, (name, values) in enumerate(
            zip(self.columns[1:], zip(*numbers, strict=True), strict=False)
        ):
            if self.kind == "lines":
                axes.plot(names, values, marker=".", label=name)
            else:
                places = [
                    place + (number - (len(self.columns) - 2) / 2) * width for place in range(len(names))
                ]
                axes.bar(places, values, width, label=name)
        if self.kind == "lines":
            axes.set_ylim(bottom=min(0, *axes.get_ylim()))
            axes.locator_params(axis="x", integer=True)
        else:
            _name(axes, "x", names)
        axes.legend()
        return figure


def _name(axes: Any, axis: Literal["x", "y"], names: list[Any]) -> None:
    """Write names at an axis, where they can be read; long ones in short."""
    shown = [str(name) if len(str(name)) <= 30 else f"{str(name)[:29]}…" for name in names]
    if len(names) > _MOST_NAMES:
        return
    turned = {"rotation": 90} if axis == "x" and max(map(len, shown), default=0) > 3 else {}
    getattr(axes, f"set_{axis}ticks")(range(len(names)), shown, **turned)


class Charts(Callback):
    """Writes what the model does with validation rows into the run folder, `charts/NAME.csv` and `.png`, and to W&B.

    Which charts there are is the model's kind to say: of a classifier, which class it takes for which, how often
    memories have a text's own label by their rank, and how much they count for; of a model of dialogues, which turns
    it reads; of one that ranks, how far down the right texts stand, how the scores of right and wrong pairs are spread
    and how strongly the words of a pair interact. Nothing that is learned changes. Of several processes the first
    draws, and encodes a collection that is ranked once more.
    """

    def __init__(self, num_texts: int = 1000, every_n_epochs: int = 1) -> None:
        """Choose how much is looked at.

        Args:
            num_texts: validation rows, the first ones.
            every_n_epochs: how often.
        """
        self.num_texts = num_texts
        self.every_n_epochs = every_n_epochs

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        if not trainer.is_global_zero:
            return
        model: Any = pl_module
        folder = Path(trainer.default_root_dir) / "charts"
        folder.mkdir(parents=True, exist_ok=True)
        for chart in model.charts(trainer.datamodule, self.num_texts):  # type: ignore[attr-defined]
            _write(chart, folder)
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    picture = str(folder / f"{chart.name}.png")
                    logger.log_image(f"charts/{chart.name}", [picture], step=trainer.global_step)


def _write(chart: Chart, folder: Path) -> None:
    with (
        new_file(folder / f"{chart.name}.csv") as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(chart.columns)
        writer.writerows(chart.lines)
    with new_file(folder / f"{chart.name}.png") as partial:
        chart.draw().savefig(partial, format="png", dpi=120)
