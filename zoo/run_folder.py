"""Run folders: settings, figures of every epoch, and the picture of the training."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from datamodules.core.errors import InputError, reason, visible
from datamodules.core.files import existing_file, load_mapping

#: Callbacks that change nothing that is learned: they are not settings.
_WATCHES = re.compile(r"^callbacks\.|(Monitor|Checkpoint|ProgressBar|Summary)$")
#: Metrics of which less is better.
_LOWER = re.compile(r"(^|[/_])(loss|errors?|perplexity|gradient_norm|waiting_share)(_|$)")


@dataclass(frozen=True)
class Run:
    """Contents of a run folder."""

    name: str
    #: the configuration with names such as `model.optimizer.lr`, values as text.
    settings: dict[str, str]
    #: `metrics.csv` in the order of the steps: epoch, from 1, and metric -> value.
    logged: list[tuple[int, dict[str, float]]]
    #: duration; None if the run is unfinished.
    seconds: float | None
    #: the metric by which the best epoch is chosen, and whether its `max` or `min` is best.
    monitor: str | None
    mode: str | None

    def lower_is_better(self, metric: str) -> bool:
        """Return True if less of a metric is better: by the run's mode for the monitored one, else by its name."""
        if metric == self.monitor and self.mode is not None:
            return self.mode == "min"
        return _LOWER.search(metric) is not None

    def best(self) -> tuple[int, dict[str, float]]:
        """Return the best epoch and its figures; the last ones where no finite metric was monitored."""
        monitor = self.monitor or ""
        rows = [(epoch, row) for epoch, row in self.logged if math.isfinite(row.get(monitor, math.nan))]
        if not rows:
            return self.logged[-1][0], {name: value for _, row in self.logged for name, value in row.items()}
        choose = min if self.lower_is_better(monitor) else max
        best, figures = choose(rows, key=lambda row: row[1][monitor])
        others = [row for epoch, row in self.logged if epoch == best]
        return best, {name: value for row in [*others, figures] for name, value in row.items()}


def read_run(folder: Path) -> Run:
    """Read a run folder; raises an `InputError` if it is none or one of its files is damaged."""
    files = [folder / "hparams.yaml", folder / "summary.json"]
    parameters, summary = (load_mapping(file) if file.exists() else {} for file in files)
    if "config" not in parameters:
        raise InputError("no run folder: it has no hparams.yaml of `zoo fit`")
    chosen = {name: parameters.get(name) for name in ("monitor", "mode")}
    return Run(
        name=visible(str(folder)),
        settings=dict(_flatten(parameters["config"])),
        logged=_read_metrics(existing_file(folder / "metrics.csv")),
        seconds=summary.get("seconds"),
        **{name: None if value is None else str(value) for name, value in chosen.items()},
    )


def _flatten(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The settings one by one. A class is a setting, and its options are named like those of its owner."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "class_path":
                yield name, str(inner).rpartition(".")[2]
            else:
                yield from _flatten(inner, name if key == "init_args" else f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        named = [(str(item.get("class_path")), item.get("init_args")) for item in value]
        classes = {path.rpartition(".")[2]: options for path, options in named if not _WATCHES.search(path)}
        yield name, ", ".join(classes)
        yield from _flatten(classes, name)
    else:
        yield name, " ".join(value.split()) if isinstance(value, str) else json.dumps(value, default=str)


def _read_metrics(file: Path) -> list[tuple[int, dict[str, float]]]:
    """Rows of `metrics.csv`; a step that a resumed run repeated has its later figures."""
    rows: dict[tuple[int, int], dict[str, float]] = {}
    # Learning rates are logged before their step, without an epoch: they belong to the next row.
    waiting: dict[str, float] = {}
    with file.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        try:
            for row in reader:
                epoch, step = row.pop("epoch"), row.pop("step")
                waiting |= {name: float(text) for name, text in row.items() if text}
                if epoch:
                    rows.setdefault((int(float(epoch)), int(float(step))), {}).update(waiting)
                    waiting = {}
        except (ValueError, TypeError, KeyError, OverflowError, csv.Error) as error:
            raise InputError(
                f"{file.name}, line {reader.line_num}: can't be read: {reason(error)}"
            ) from error
    if not rows:
        raise InputError(f"{file.name} has no metrics")
    return [(epoch, rows[epoch, step]) for epoch, step in sorted(rows)]
