"""What a run folder tells: its settings, whether it has ended, and its figures in every epoch."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from datamodules.core.errors import InputError, reason

Value: TypeAlias = "str | int | float | None"

#: `runs` holds `runs/MODEL/DATE`.
_LEVELS = 2
#: Callbacks that look on: the settings of what was learned are without them.
_LOOKS_ON = re.compile(r"^callbacks\.|(Monitor|Checkpoint|ProgressBar|Summary)$")
#: Metrics of which less is better.
_LOWER = re.compile(r"(^|[/_])(loss|errors?|perplexity|gradient_norm|waiting_share)(_|$)")


class Logged(NamedTuple):
    """What a run wrote down after a step."""

    #: counted from 1.
    epoch: int
    step: int
    #: metric -> value.
    values: dict[str, float]


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
        name: the folder, as it was named or found.
        settings: `config.yaml` with names such as `model.optimizer.lr`.
        logged: `metrics.csv`, in the order of the steps.
        summary: `summary.json`; empty for a run that has not ended.
        monitor: the metric that the best epoch is chosen by, where the run says so.
        mode: `max` or `min`: what is best of that metric.
    """

    name: str
    settings: dict[str, Value]
    logged: list[Logged]
    summary: dict[str, Any]
    monitor: str | None
    mode: str | None

    @property
    def status(self) -> str:
        """Finished, unfinished, or no metrics: of such a run there is nothing to compare."""
        if not self.logged:
            return "no metrics"
        return "finished" if self.summary else "unfinished"

    @property
    def metrics(self) -> set[str]:
        """Names of all that was logged."""
        return {name for row in self.logged for name in row.values}

    def lower_is_better(self, metric: str) -> bool:
        """Of what is monitored the run says it; of other metrics their name does."""
        if metric == self.monitor and self.mode is not None:
            return self.mode == "min"
        return _LOWER.search(metric) is not None

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(epoch, the metric's last value in it) of each epoch that has one."""
        return list({row.epoch: row.values[metric] for row in self.logged if metric in row.values}.items())

    def best(self) -> tuple[int | None, dict[str, float]]:
        """The best epoch, and its figures: metric -> value.

        A run that monitored nothing (some models keep their best epoch by themselves) has its last figures, and so has
        one whose monitored metric was never a number.
        """
        monitor = self.monitor
        chosen = [row for row in self.logged if math.isfinite(row.values.get(monitor or "", math.nan))]
        if monitor is None or not chosen:
            last = self.logged[-1].epoch if self.logged else None
            return last, {name: value for row in self.logged for name, value in row.values.items()}
        best = (min if self.lower_is_better(monitor) else max)(chosen, key=lambda row: row.values[monitor])
        figures = {
            name: value
            for row in self.logged
            if row.epoch == best.epoch
            for name, value in row.values.items()
        }
        return best.epoch, {**figures, **best.values}


def find_runs(folder: Path, levels: int = _LEVELS) -> list[Path]:
    """The run folders that a folder stands for: itself, or those in it.

    Raises:
        InputError: there are none.
    """
    if not folder.is_dir():
        raise InputError("it is a file; name the run's folder" if folder.exists() else "no such folder")
    found = _runs_in(folder, levels)
    if not found:
        raise InputError("no run folder: neither it nor a folder in it has a config.yaml of `zoo fit`")
    return found


def _runs_in(folder: Path, levels: int) -> list[Path]:
    if (folder / "config.yaml").is_file():
        return [folder]
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir()] if levels else []
    return [run for path in inner for run in _runs_in(path, levels - 1)]


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        InputError: one of its files is damaged; it says which.
    """
    config = _read(folder / "config.yaml", yaml.safe_load)
    # In the order in which they are written: where the last is missing, the file was cut.
    for name in ("model", "data", "run_dir"):
        if name not in config:
            raise InputError(f"config.yaml has no {name!r}: it is not whole, or not of `zoo fit`")
    summary = _read(folder / "summary.json", json.loads) if (folder / "summary.json").exists() else {}
    told = summary
    if not summary and (folder / "hparams.yaml").exists():
        told = _read(folder / "hparams.yaml", yaml.safe_load)
    return Run(
        name=str(folder),
        settings=dict(_flat(config)),
        logged=_read_metrics(folder / "metrics.csv"),
        summary=summary,
        monitor=told.get("monitor"),
        mode=told.get("mode"),
    )


def _read(file: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        found = parse(file.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file.name} can't be read: {reason(error)}") from error
    if not isinstance(found, dict):
        raise InputError(f"{file.name} holds no mapping of names to values")
    return found


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, Value]]:
    """The settings one by one; a class is its own setting, and its options are named like those of its owner."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "class_path":
                yield name, _class_name(inner)
            else:
                yield from _flat(inner, name if key == "init_args" else f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(v, dict) and "class_path" in v for v in value):
        classes = [item for item in value if not _LOOKS_ON.search(str(item["class_path"]))]
        yield name, ", ".join(_class_name(item["class_path"]) for item in classes) or None
        for item in classes:
            yield from _flat(item.get("init_args"), f"{name}.{_class_name(item['class_path'])}")
    else:
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        yield name, value if plain or value is None else json.dumps(value)


def _class_name(path: Any) -> str:
    return str(path).rpartition(".")[2]


def _read_metrics(file: Path) -> list[Logged]:
    """`metrics.csv` by steps; a resumed run that takes a step again replaces what it said of it."""
    if not file.is_file():
        return []
    found: dict[tuple[int, int], dict[str, float]] = {}
    # Learning rates are logged before their step, without an epoch: they are of the next row's.
    waiting: dict[str, float] = {}
    line = 1
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                line += 1
                epoch, step = row.pop("epoch"), row.pop("step")
                values = {name: float(text) for name, text in row.items() if text}
                if epoch:
                    at = (int(float(epoch)) + 1, int(float(step)))
                    found[at] = {**found.get(at, {}), **waiting, **values}
                    waiting = {}
                else:
                    waiting |= values
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        # Of a file that is not UTF-8, and of one without the columns, no line is to blame.
        where = "" if isinstance(error, (UnicodeDecodeError, KeyError)) else f", line {line}"
        raise InputError(f"{file.name}{where} can't be read: {reason(error)}") from error
    return [Logged(*at, values) for at, values in sorted(found.items())]
