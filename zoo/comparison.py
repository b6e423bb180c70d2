"""`zoo compare`: runs by the settings in which they differ, and by the figures of their best epochs."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jsonargparse import ArgumentParser

from callbacks.chart import write_table
from datamodules.core.errors import InputError, reason
from datamodules.core.storage import write_text
from zoo.markdown import markdown_table
from zoo.run_folder import Run, read_run

#: Settings that define the task and its validation rows: figures of others can't be compared.
_DATA = re.compile(r"data(\.(goal|classes|validation_\w+|train_\w+))?")
#: Settings of a run's place and of its displays.
_PLACES = re.compile(
    r"run_dir|ckpt_path|output|config|data\.cache_dir|"
    r"trainer\.(default_root_dir|logger|enable_|log_every_n_steps)"
)
_SEEDS = ("seed_everything", "data.split_seed")
#: Metrics of the validation, without those of single classes.
_METRIC = re.compile(r"val/[^/]+")


class Comparison(NamedTuple):
    """Runs of one task on the same validation rows. `compared` makes it."""

    title: str
    #: the first one orders the runs.
    metrics: list[str]
    #: settings in which the runs differ.
    names: list[str]
    #: runs that differ by their seed alone are a group; the best group and the best run come first.
    groups: list[list[Run]]


def run(command: str, options: list[str], /) -> None:
    """Run the command; run folders are positional, as the shell lists them."""
    parser = ArgumentParser(prog=f"zoo {command}", exit_on_error=False)
    parser.add_argument("runs", nargs="*", help="folders of `zoo fit`, or folders that contain such")
    parser.add_function_arguments(compare, skip={"runs"})
    chosen = parser.parse_args(options)
    compare(chosen.runs, chosen.metrics, chosen.output)


def compare(runs: list[str], metrics: str | None = None, output: str | None = None) -> None:
    """Print a table of runs for each task and its rows, with means where runs differ by their seed alone.

    Args:
        runs: run folders, or folders that contain such; those that can't be read are skipped.
        metrics: names of metrics, "val/accuracy,val/loss", the first of which orders the runs; null: the monitored
            metrics, and others of the validation in which runs differ.
        output: a folder for `compare.md` and `compare.csv` (a row for each run); null: no files.
    """
    if not runs:
        raise InputError("zoo compare: name run folders, such as runs/KNNBiLSTM/*")
    readable = _read_all(map(Path, runs))
    if not readable:
        raise InputError("zoo compare: none of the folders holds a run that can be read; name others")
    wanted = None if metrics is None else [name.strip() for name in metrics.split(",")]
    known = {name for run in readable for name in run.best()[1]}
    for name in wanted or ():
        if name not in known:
            raise InputError(f"--metrics {name}: no run has it; there are {', '.join(sorted(known))}")
    comparisons = compared(readable, wanted)
    tables = [markdown_table(table_of(each)) for each in comparisons]
    if len(tables) > 1:
        tables = [f"## {each.title}\n\n{table}" for each, table in zip(comparisons, tables, strict=True)]
    text = "\n".join(tables)
    print(text, end="")
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "compare.md", text)
        _write_csv(folder / "compare.csv", comparisons)


def _read_all(paths: Iterable[Path]) -> list[Run]:
    """Read the runs in the folders, each once."""
    runs: dict[str, Run] = {}
    for path in paths:
        for folder in sorted(file.parent for file in path.rglob("hparams.yaml")) or [path]:
            try:
                runs.setdefault(os.path.realpath(folder), read_run(folder))
            except (InputError, OSError) as error:
                print(f"skipped {folder}: {reason(error)}", file=sys.stderr)
    return list(runs.values())


def compared(runs: Sequence[Run], wanted: Sequence[str] | None) -> list[Comparison]:
    """Group runs that can be compared, the largest group first; see `compare` for the default of the metrics."""
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(_task(run), []).append(run)
    largest_first = sorted(tasks.items(), key=lambda task: -len(task[1]))
    return [_comparison(title, group, wanted) for title, group in largest_first]


def _task(run: Run) -> str:
    """Return the task, and the files of its validation rows, or those that validation rows are split from."""
    options = {name: run.settings[name] for name in run.settings if _DATA.fullmatch(name)}
    options = {name.partition(".")[2]: value for name, value in options.items() if value != "null"}
    if any(name.startswith("validation_") and name != "validation_split" for name in options):
        options = {name: value for name, value in options.items() if not name.startswith("train_")}
    kind = options.pop("", "").removesuffix("DataModule")
    return ", ".join([kind, *(f"{name} {value}" for name, value in options.items())])


def _comparison(title: str, runs: list[Run], wanted: Sequence[str] | None) -> Comparison:
    best = [run.best()[1] for run in runs]
    known = sorted({name for figures in best for name in figures})
    if wanted is None:
        differing = [name for name in known if len(runs) == 1 or len({str(f.get(name)) for f in best}) > 1]
        wanted = [str(run.monitor) for run in runs] + [name for name in differing if _METRIC.fullmatch(name)]
    metrics = [name for name in dict.fromkeys(wanted) if name in known]
    runs = sorted(runs, key=lambda run: _rank(run, metrics[0])) if metrics else runs
    settings = dict.fromkeys(name for run in runs for name in run.settings if not _PLACES.match(name))
    # Options of another model are no difference.
    names = [name for name in settings if len({run.settings.get(name) for run in runs} - {None}) > 1]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        key = tuple(run.settings.get(name, "") for name in names if name not in _SEEDS)
        groups.setdefault(key, []).append(run)
    return Comparison(title, metrics, names, [*groups.values()])


def _rank(run: Run, metric: str) -> float:
    """Return a sorting key: the best first, missing and non-finite values last."""
    value = run.best()[1].get(metric, math.nan)
    if not math.isfinite(value):
        return math.inf
    return value if run.lower_is_better(metric) else -value


def table_of(comparison: Comparison) -> list[list[str]]:
    """Return rows of cells, the header first: the mean of each group of several seeds, followed by its runs."""
    _, metrics, names, groups = comparison
    table = [["run", *metrics, "best epoch", *names, "seconds"]]
    for group in groups:
        seeds = _finished(group)
        if len(seeds) > 1:
            figures = np.array([[run.best()[1].get(name, math.nan) for name in metrics] for run in seeds])
            pairs = zip(figures.mean(axis=0), figures.std(axis=0, ddof=1), strict=True)
            same = ["" if name in _SEEDS else group[0].settings.get(name, "") for name in names]
            means = [f"{_text(mean)} ± {deviation:.2g}" for mean, deviation in pairs]
            table.append([f"mean of {len(seeds)} seeds", *means, "", *same, ""])
        for cells in (_cells(comparison, run) for run in group):
            cells["seconds"] = cells["seconds"] or "unfinished"
            table.append([_text(cells[column]) for column in table[0]])
    return table


def _cells(comparison: Comparison, run: Run) -> dict[str, str | float | None]:
    """Return the row of a run: column -> value; None where the run has none."""
    epoch, best = run.best()
    figures = {name: best.get(name) for name in comparison.metrics}
    options = {name: run.settings.get(name) for name in comparison.names}
    return {"run": run.name, **figures, "best epoch": epoch, **options, "seconds": run.seconds}


def _finished(group: Sequence[Run]) -> list[Run]:
    """Return the finished runs of a group; of several with one seed the latest by name."""
    finished = sorted((run for run in group if run.seconds is not None), key=lambda run: run.name)
    return [*{tuple(run.settings.get(name, "") for name in _SEEDS): run for run in finished}.values()]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


def _write_csv(file: Path, comparisons: Sequence[Comparison]) -> None:
    """Write a row for each run, with all digits."""
    rows = [
        {"task": each.title, **_cells(each, run)}
        for each in comparisons
        for group in each.groups
        for run in group
    ]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    write_table(file, columns, [[row.get(column) for column in columns] for row in rows])
