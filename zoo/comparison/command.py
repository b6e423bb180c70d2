"""`zoo compare`: runs side by side, by the settings that differ and by their figures.

It reads what every run folder holds, `config.yaml`, `metrics.csv` and `summary.json`, and needs no logger. The page
that it writes opens from disk: curves, style and script are part of it, and nothing is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from jsonargparse import ArgumentParser

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import write_text
from zoo.comparison.page import page
from zoo.comparison.runs import Run, find_runs, read_run
from zoo.comparison.table import compared, markdown

T = TypeVar("T")


def run(command: str, options: list[str]) -> None:
    """Run the command: the run folders are by place, as the shell lists them."""
    parser = ArgumentParser(prog=f"zoo {command}", exit_on_error=False)
    parser.add_argument(
        "runs", nargs="*", help="run folders, as `zoo fit` writes them, or folders that hold such"
    )
    parser.add_function_arguments(compare, skip={"runs"})
    chosen = parser.parse_args(options)
    compare(chosen.runs, chosen.metrics, chosen.output)


def compare(runs: list[str], metrics: str | None = None, output: str | None = None) -> None:
    """Print a table of runs: the settings that differ, and the figures of each run's best epoch.

    Runs of another task, or on other rows, have a table of their own; where runs differ by their seed alone, another
    one has their means. A folder that can't be read is left out, with a line on standard error.

    Args:
        runs: run folders, as `zoo fit` writes them, or folders that hold such.
        metrics: names of metrics, "val/accuracy,val/loss", the first of which orders the runs; null: what the runs
            monitor, and the validation's others in which they differ, but for those of single classes and for counts
            of rows.
        output: a folder for `compare.md` and for `compare.html`, which also draws the curves; null writes nothing.
    """
    if not runs:
        raise InputError("zoo compare: name run folders, such as runs/KNNBiLSTM/*")
    read = _read_all(runs)
    if not read:
        raise InputError("zoo compare: none of the folders holds a run that can be read; name others")
    asked = None if metrics is None else [name.strip() for name in metrics.split(",")]
    known = {name for run in read for name in run.metrics}
    for name in asked or ():
        if name not in known:
            raise InputError(f"--metrics {name}: no run has it; there are {', '.join(sorted(known))}")
    comparisons = compared(read, asked)
    text = markdown(comparisons)
    print(text, end="")
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "compare.md", text)
        write_text(folder / "compare.html", page(comparisons))
        print(f"{folder / 'compare.html'}")


def _read_all(named: Iterable[str]) -> list[Run]:
    """The runs that can be read, each once."""
    places = [Path(name) for name in named]
    files = [place for place in places if place.is_file()]
    if 0 < len(files) < len(places):  # which lie beside runs, where the shell names all that there is
        print(f"files left out: {len(files)}; runs are folders", file=sys.stderr)
        places = [place for place in places if place not in files]
    folders = {folder.resolve(): folder for place in places for folder in _tried(find_runs, place) or ()}
    return [run for folder in folders.values() if (run := _tried(read_run, folder)) is not None]


def _tried(read: Callable[[Path], T], folder: Path) -> T | None:
    """What is read of a folder; None where that fails, and why is said."""
    try:
        return read(folder)
    except (InputError, OSError) as error:
        print(f"{folder}: left out: {reason(error)}", file=sys.stderr)
        return None
