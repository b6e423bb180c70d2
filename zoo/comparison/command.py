"""`zoo compare`: runs by the settings in which they differ and by their figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from jsonargparse import ArgumentParser

from datamodules.core.errors import InputError, reason
from datamodules.core.storage import write_text
from zoo.comparison.page import page
from zoo.comparison.table import compared, markdown
from zoo.saving.run_folder import Run, read_run


def run(command: str, options: list[str]) -> None:
    """Run the command; run folders are positional, as the shell lists them."""
    parser = ArgumentParser(prog=f"zoo {command}", exit_on_error=False)
    parser.add_argument(
        "runs", nargs="*", help="run folders, as `zoo fit` writes them, or folders that hold such"
    )
    parser.add_function_arguments(compare, skip={"runs"})
    chosen = parser.parse_args(options)
    compare(chosen.runs, chosen.metrics, chosen.output)


def compare(runs: list[str], metrics: str | None = None, output: str | None = None) -> None:
    """Print a table of runs for each task and its rows, with their means where runs differ by their seed alone.

    Args:
        runs: run folders, or folders that hold such; those that can't be read are skipped.
        metrics: names of metrics, "val/accuracy,val/loss", the first of which orders the runs; null: the monitored
            metrics, and the validation's others in which runs differ.
        output: a folder for `compare.md` and for `compare.html`, which also has curves; null: no files.
    """
    if not runs:
        raise InputError("zoo compare: name run folders, such as runs/KNNBiLSTM/*")
    readable = _read_all(map(Path, runs))
    if not readable:
        raise InputError("zoo compare: none of the folders holds a run that can be read; name others")
    wanted = None if metrics is None else [name.strip() for name in metrics.split(",")]
    known = {name for run in readable for _, row in run.logged for name in row}
    for name in wanted or ():
        if name not in known:
            raise InputError(f"--metrics {name}: no run has it; there are {', '.join(sorted(known))}")
    comparisons = compared(readable, wanted)
    text = markdown(comparisons)
    print(text, end="")
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "compare.md", text)
        write_text(folder / "compare.html", page(comparisons))
        print(f"{folder / 'compare.html'}")


def _read_all(paths: Iterable[Path]) -> list[Run]:
    """Read the runs in the folders, each once."""
    runs: dict[Path, Run] = {}
    for path in paths:
        for folder in sorted(file.parent for file in path.rglob("hparams.yaml")) or [path]:
            try:
                runs.setdefault(folder.resolve(), read_run(folder))
            except (InputError, OSError) as error:
                print(f"skipped {folder}: {reason(error)}", file=sys.stderr)
    return list(runs.values())
