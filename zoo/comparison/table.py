"""Tables of runs: one for each task and its data, the best run first, and one of the means over seeds."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from zoo.comparison.runs import Run, Value

#: Settings that say what is validated, beside files: figures of other tasks and rows can't be compared.
_DATA = ("data", "data.goal")
#: Settings that say which rows of it.
_ROWS = ("data.validation_split", "data.classes")
#: Settings that say where a run is and what it shows, not what it does.
_PLACES = (
    "run_dir",
    "ckpt_path",
    "output",
    "config",
    "data.cache_dir",
    "trainer.default_root_dir",
    "trainer.logger",
    "trainer.enable_",
    "trainer.log_every_n_steps",
)
_SEEDS = ("seed_everything", "data.seed", "data.split_seed")
#: Metrics that count rows: they say what the data are like, not how good a run is.
_COUNTS = re.compile(
    r"val/((near_|empty_)?(rows|pairs|questions|queries|copies)(_\w+)?|unknown_labels|unanswerable)"
)
#: Characters of a setting; the page has the whole of it in a tooltip.
_LONGEST = 40


class Mean(NamedTuple):
    """Of a metric over seeds; the standard deviation is None for a single seed."""

    mean: float
    deviation: float | None


Cell: TypeAlias = "Value | Mean"


class Line(NamedTuple):
    """A line of a table, and the runs that it is about."""

    runs: list[Run]
    cells: list[Cell]


class Table(NamedTuple):
    """Names of the columns, and the lines."""

    header: list[str]
    lines: list[Line]


@dataclass(frozen=True)
class Comparison:
    """Runs of one task on the same validation rows.

    Attributes:
        title: the task and its data.
        runs: the best one first.
        metrics: the first one orders the runs.
        table: a line a run.
        means: a line for runs that differ by their seed alone; None where there are none.
    """

    title: str
    runs: list[Run]
    metrics: list[str]
    table: Table
    means: Table | None


def compared(runs: Sequence[Run], metrics: Sequence[str] | None) -> list[Comparison]:
    """Put runs side by side that can be compared.

    Args:
        runs: of any tasks.
        metrics: names; None = what the runs monitor, and the validation's others in which they differ.
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(_data(run)), []).append(run)
    largest_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [_comparison(", ".join(data), group, metrics) for data, group in largest_first]


def _data(run: Run) -> list[str]:
    """What is validated: the task, and the validation's files or those that it is split off."""
    rows = [f"{name} {run.settings[name]}" for name in _ROWS if run.settings.get(name) is not None]
    task = [str(run.settings[name]).removesuffix("DataModule") for name in _DATA if run.settings.get(name)]
    for start in ("data.validation_", "data.train_"):
        files = [v for name, v in run.settings.items() if name.startswith(start) and isinstance(v, str)]
        if files:
            return [*task, *files, *rows]
    return [*task, *rows]


def _comparison(title: str, runs: list[Run], asked: Sequence[str] | None) -> Comparison:
    known = {name for run in runs for name in run.metrics}
    monitored = list(dict.fromkeys(run.monitor for run in runs if run.monitor is not None))
    validated = sorted(
        name
        for name in known
        if name.startswith("val/") and name.count("/") == 1 and not _COUNTS.fullmatch(name)
    )
    # What has not ended and doesn't say what it monitors is read as the others are.
    first = next(iter([*monitored, *(asked or validated)]), None)
    runs = [replace(run, monitor=run.monitor or first) if run.status == "unfinished" else run for run in runs]
    if asked is None:
        metrics = list(dict.fromkeys([*monitored, *_differing_metrics(runs, validated)]))
    else:
        metrics = [name for name in asked if name in known]
    if metrics:
        runs.sort(key=lambda run: _rank(run, metrics[0], run.best()[1].get(metrics[0])))
    settings = _differing_settings(runs)
    return Comparison(title, runs, metrics, _table(runs, settings, metrics), _means(runs, settings, metrics))


def _differing_metrics(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
    figures = [run.best()[1] for run in runs]
    return [name for name in metrics if len(runs) == 1 or len({str(f.get(name)) for f in figures}) > 1]


def _rank(run: Run, metric: str, value: float | None) -> float:
    """What lines are sorted by: the best comes first, what has no figure or is not a number last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return value if run.lower_is_better(metric) else -value


def _differing_settings(runs: Sequence[Run]) -> list[str]:
    """Settings on which the runs that have them disagree: another model has options of its own, but is named."""
    names = dict.fromkeys(name for run in runs for name in run.settings if not name.startswith(_PLACES))
    return [
        name for name in names if len({str(run.settings[name]) for run in runs if name in run.settings}) > 1
    ]


def _table(runs: Sequence[Run], settings: Sequence[str], metrics: Sequence[str]) -> Table:
    ended = all(run.status == "finished" for run in runs)
    # The figures stand beside the name: of many settings, the last ones are off the screen.
    header = ["run", *([] if ended else ["status"]), *metrics, "best epoch", *settings]
    lines = []
    for run in runs:
        epoch, figures = run.best()
        last = run.logged[-1].epoch if run.logged else None
        # A model that is fitted without gradient steps has a single parameter, which nothing learns.
        parameters = run.summary.get("trained_parameters") or 0
        cells: list[Cell] = [
            run.name,
            *([] if ended else [run.status]),
            *(figures.get(name) for name in metrics),
            epoch,
            *(run.settings.get(name) for name in settings),
            run.summary.get("epochs", last),
            run.summary.get("seconds"),
            parameters if parameters > 1 else None,
        ]
        lines.append(Line([run], cells))
    return Table([*header, "epochs", "seconds", "parameters"], lines)


def _means(runs: Sequence[Run], settings: Sequence[str], metrics: Sequence[str]) -> Table | None:
    """Means over the finished runs that differ by their seed alone; of one that was done twice the latest counts."""
    others = [name for name in settings if name not in _SEEDS]
    first, rest = others[:1], others[1:]  # the model, where it differs
    groups: dict[tuple[str, ...], dict[tuple[str, ...], Run]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        if run.status == "finished":
            alike = tuple(str(run.settings.get(name)) for name in others)
            seed = tuple(str(run.settings.get(name)) for name in _SEEDS)
            groups.setdefault(alike, {})[seed] = run
    if not metrics or all(len(seeds) == 1 for seeds in groups.values()):
        return None
    lines = []
    for seeds in groups.values():
        group = list(seeds.values())
        figures = [run.best()[1] for run in group]
        means = [_mean([found.get(name) for found in figures]) for name in metrics]
        said = group[0].settings
        cells: list[Cell] = [*map(said.get, first), *means, len(group), *map(said.get, rest)]
        rank = _rank(group[0], metrics[0], means[0].mean if means[0] else None)
        lines.append((rank, Line(group, cells)))
    return Table(
        [*first, *metrics, "seeds", *rest], [line for _, line in sorted(lines, key=lambda item: item[0])]
    )


def _mean(values: Sequence[float | None]) -> Mean | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if not all(map(math.isfinite, known)):
        return Mean(math.nan, None)
    return Mean(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


# --- as text ---


def shown(value: Cell) -> str:
    """A cell as text; of long values the middle is left out."""
    if value is None:
        return ""
    if isinstance(value, Mean):
        return shown(value.mean) + ("" if value.deviation is None else f" ± {value.deviation:.2g}")
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = f"{value:,}" if isinstance(value, int) else " ".join(value.split())
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def markdown(comparisons: Sequence[Comparison]) -> str:
    """All tables, with headings where there are several."""
    lines: list[str] = []
    for one in comparisons:
        if len(comparisons) > 1:
            lines += [f"## {one.title}", ""]
        if one.means is not None:
            lines += ["Means ± standard deviations over seeds:", "", *_lines(one.means), ""]
            lines += ["Runs:", ""]
        lines += [*_lines(one.table), ""]
    return "\n".join(lines[:-1]) + "\n"


def _lines(table: Table) -> list[str]:
    rows = [table.header, *([*map(shown, line.cells)] for line in table.lines)]
    if table.header[0] == "run":
        # Its name is a place to go to, and is never cut.
        rows[1:] = [[str(line.cells[0]), *row[1:]] for line, row in zip(table.lines, rows[1:], strict=True)]
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    written = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return [written[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *written[1:]]
