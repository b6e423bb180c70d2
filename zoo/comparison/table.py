"""Tables of runs: one for each task and its data, best run first, and one of means over seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zoo.markdown import markdown_table
from zoo.saving.run_folder import Run

#: Settings that define the task and its validation rows: figures of others can't be compared.
_DATA = re.compile(r"data(\.(goal|classes|validation_\w+|train_\w+))?")
#: Settings of a run's place and of its displays.
_PLACES = re.compile(
    r"run_dir|ckpt_path|output|config|data\.cache_dir|"
    r"trainer\.(default_root_dir|logger|enable_|log_every_n_steps)"
)
_SEEDS = ("seed_everything", "data.seed", "data.split_seed")
#: Metrics that count rows.
_COUNTS = re.compile(
    r"val/((near_|empty_)?(rows|pairs|questions|queries|duplicates)(_\w+)?|unknown_labels|unanswerable)"
)

#: Rows of text; the first one is the header.
Table: TypeAlias = "list[list[str]]"


class Setting(NamedTuple):
    """Runs that differ by their seed alone, best first."""

    #: the values of the settings in which all runs differ; of a single run its name.
    title: str
    runs: list[Run]


class Comparison(NamedTuple):
    """Runs of one task on the same validation rows, best first, those of one setting together."""

    title: str
    settings: list[Setting]
    #: the first one orders the runs.
    metrics: list[str]
    table: Table
    #: a row for each group of runs that differ by their seed alone; None if there is none.
    means: Table | None

    @property
    def runs(self) -> list[Run]:
        """The runs of all settings."""
        return [run for setting in self.settings for run in setting.runs]


def compared(runs: Sequence[Run], metrics: Sequence[str] | None) -> list[Comparison]:
    """Group runs that can be compared, the largest group first; see `compare` for the default of `metrics`."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_task(run), []).append(run)
    largest_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [_comparison(title, group, metrics) for title, group in largest_first]


def _task(run: Run) -> str:
    """The task, and the files of its validation rows, or those that validation rows are split from."""
    options = {name: run.settings[name] for name in run.settings if _DATA.fullmatch(name)}
    options = {name.partition(".")[2]: value for name, value in options.items() if value != "null"}
    if any(name.startswith("validation_") and name != "validation_split" for name in options):
        options = {name: value for name, value in options.items() if not name.startswith("train_")}
    kind = options.pop("", "").removesuffix("DataModule")
    return ", ".join([kind, *(f"{name} {value}" for name, value in options.items())])


def _comparison(title: str, runs: list[Run], wanted: Sequence[str] | None) -> Comparison:
    best = [run.best()[1] for run in runs]
    metrics = [run.monitor for run in runs if run.monitor is not None] if wanted is None else [*wanted]
    if wanted is None:
        # Without counts of rows and metrics of single classes.
        others = sorted({name for figures in best for name in figures if re.match(r"val/[^/]+$", name)})
        differing = [name for name in others if len(runs) == 1 or len({str(f.get(name)) for f in best}) > 1]
        metrics = _distinct([*metrics, *(name for name in differing if not _COUNTS.fullmatch(name))], runs)
    known = {name for run in runs for _, row in run.logged for name in row}
    metrics = [name for name in dict.fromkeys(metrics) if name in known]
    if metrics:
        runs = sorted(runs, key=lambda run: _rank(run, metrics[0], run.best()[1].get(metrics[0])))
    names = _differing_settings(runs)
    settings = _settings(runs, names)
    runs = [run for setting in settings for run in setting.runs]
    return Comparison(
        title, settings, metrics, _table(runs, names, metrics), _means(settings, names, metrics)
    )


def _distinct(metrics: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Metrics without those that equal an earlier one in each epoch of each run, such as micro-F1 and accuracy."""
    first: dict[str, str] = {}
    for name in metrics:
        first.setdefault(str([(run.lower_is_better(name), run.curve(name)) for run in runs]), name)
    return list(first.values())


def _settings(runs: Sequence[Run], names: Sequence[str]) -> list[Setting]:
    """Runs by their settings, in the order of each setting's best run."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    others = [name for name in names if name not in _SEEDS]
    for run in runs:
        groups.setdefault(tuple(run.settings.get(name, "") for name in others), []).append(run)
    settings = []
    for values, group in groups.items():
        pairs = zip(others, values, strict=True)
        title = ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in pairs if value)
        title = group[0].name if len(group) == 1 else f"{title or 'all runs'} ({len(group)} runs)"
        settings.append(Setting(title, group))
    return settings


def _rank(run: Run, metric: str, value: float | None) -> float:
    """Sorting key: the best first, missing and non-finite values last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return value if run.lower_is_better(metric) else -value


def _differing_settings(runs: Sequence[Run]) -> list[str]:
    """Settings in which the runs that have them differ; options of another model are no difference."""
    names = dict.fromkeys(name for run in runs for name in run.settings if not _PLACES.match(name))
    return [name for name in names if len({run.settings.get(name) for run in runs} - {None}) > 1]


def _table(runs: Sequence[Run], settings: Sequence[str], metrics: Sequence[str]) -> Table:
    # Figures come before settings, which may be many.
    table = [["run", *metrics, "best epoch", *settings, "seconds"]]
    for run in runs:
        epoch, best = run.best()
        figures = [_text(best[name]) if name in best else "" for name in metrics]
        options = [run.settings.get(name, "") for name in settings]
        seconds = "unfinished" if run.seconds is None else _text(run.seconds)
        table.append([run.name, *figures, str(epoch), *options, seconds])
    return table


def _means(settings: Sequence[Setting], names: Sequence[str], metrics: Sequence[str]) -> Table | None:
    """Means over finished runs that differ by their seed alone; of runs with one seed the latest counts."""
    others = [name for name in names if name not in _SEEDS]
    ranked = []
    for setting in settings:
        finished = sorted((run for run in setting.runs if run.seconds is not None), key=lambda run: run.name)
        seeds = {tuple(run.settings.get(name, "") for name in _SEEDS): run for run in finished}
        if seeds and metrics:
            best = [run.best()[1] for run in seeds.values()]
            figures = [np.array([values.get(name, math.nan) for values in best]) for name in metrics]
            rank = _rank(finished[0], metrics[0], float(figures[0].mean()))
            same = [finished[0].settings.get(name, "") for name in others]
            ranked.append((rank, len(seeds), [*map(_mean, figures), str(len(seeds)), *same]))
    if all(number == 1 for _, number, _ in ranked):
        return None
    ranked.sort(key=lambda row: row[0])
    return [[*metrics, "seeds", *others], *(row for _, _, row in ranked)]


def _mean(values: NDArray[np.float64]) -> str:
    """The mean and, of several values, the standard deviation."""
    return _text(values.mean()) + (f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else "")


def _text(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Return all tables, with headings if there are several."""
    blocks = []
    for comparison in comparisons:
        if len(comparisons) > 1:
            blocks.append(f"## {comparison.title}\n")
        if comparison.means is not None:
            means = markdown_table(comparison.means)
            blocks += ["Means ± standard deviations over seeds:\n", means, "Runs:\n"]
        blocks.append(markdown_table(comparison.table))
    return "\n".join(blocks)
