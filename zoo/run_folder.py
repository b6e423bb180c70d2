"""The figures of every epoch of a run, from its folder."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from datamodules.core.errors import InputError, reason
from datamodules.core.files import existing_file, load_mapping


def best_figures(folder: Path) -> tuple[int, dict[str, float]]:
    """Return the best epoch of a run, from 1, and its figures; the last ones where no finite metric was monitored.

    Raises an `InputError` if the folder holds no run, or one of its files is damaged.
    """
    file = folder / "hparams.yaml"
    parameters = load_mapping(file) if file.exists() else {}
    if "config" not in parameters:
        raise InputError("no run folder: it has no hparams.yaml of `zoo fit`")
    logged, monitor = _read_metrics(existing_file(folder / "metrics.csv")), str(parameters.get("monitor", ""))
    rows = [(epoch, row) for epoch, row in logged if math.isfinite(row.get(monitor, math.nan))]
    if not rows:
        return logged[-1][0], {name: value for _, row in logged for name, value in row.items()}
    choose = min if parameters.get("mode") == "min" else max
    best, figures = choose(rows, key=lambda row: row[1][monitor])
    others = [row for epoch, row in logged if epoch == best]
    return best, {name: value for row in [*others, figures] for name, value in row.items()}


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
