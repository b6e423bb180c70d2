"""`zoo reproduce`: a paper's table from one YAML file, every row for every seed, with the paper's figures.

A run is a `zoo fit` and a `zoo test` in a folder and in processes of its own.
"""

from __future__ import annotations

import csv
import ctypes
import io
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import yaml

from datamodules.core.errors import InputError, check_count, visible
from datamodules.core.storage import contents_of, lock_file, named_disk_errors, write_json, write_text
from datamodules.core.types import PlainDict
from zoo import __version__
from zoo.markdown import markdown_table
from zoo.reproduce.table import SPLITS, Row, Table, load_table, shipped_tables

#: How a command is started.
ZOO: tuple[str, ...] = (sys.executable, "-m", "zoo")

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None)  # opened beforehand: a forked process should do little


class Score(NamedTuple):
    """A line of results.csv: one metric of a row over its finished runs, in percent, or a number if it is a count."""

    table: str
    row: str
    model: str
    metric: str
    #: None without a run that has this metric.
    mean: float | None
    #: of the sample; None for a single run.
    sd: float | None
    runs: int
    #: the paper's figure.
    paper: float | None
    #: of the zoo that wrote the line.
    version: str

    def __str__(self) -> str:
        numbers = {"{}": self.mean, " ± {}": self.sd, " ({})": self.paper}
        decimals = {form: Decimal(str(each)) for form, each in numbers.items() if each is not None}
        # Half up: the binary number next to 85.85 is a little smaller.
        tenths = {form: each.quantize(Decimal("0.1"), ROUND_HALF_UP) for form, each in decimals.items()}
        return "".join(form.format(each) for form, each in tenths.items()).strip()


class RowFailed(InputError):
    """A run failed; the message is the reason."""

    exit_code = 1


class Reproduction:
    """A table in progress. The command makes it; a finished run's folder has `result.json`."""

    def __init__(
        self, table: Table, wanted: Sequence[str], seeds: int, data_dir: Path, test: Path | None, out: Path
    ) -> None:
        """Check the files of the wanted runs and of those that they start from; nothing runs yet.

        Each of `wanted` is the name of a row, for all of its seeds, or `ROW/SEED`.
        """
        self.table, self.data_dir, self.test_file, self.out = table, data_dir, test, out
        if table.skip_absent:
            rows = {name: self._without_absent_test(row) for name, row in table.rows.items()}
            self.table = replace(table, rows=rows)
        self.results = out / "results.csv"
        #: row -> the reason.
        self.skipped: dict[str, str] = {}
        self.failed: list[str] = []
        self.runs = [run for run in self._with_starts(wanted, seeds) if self._has_files(run)]
        if not self.runs:
            raise InputError(f"--data_dir {data_dir}: holds the data of no row of {table.name}")
        #: data options of `zoo test` for rows without a test of their own.
        self.test_options: PlainDict = {}
        if test is not None:
            without_test = next((run for run in self.runs if not self._has_test(run)), None)
            if without_test is None:
                raise InputError(f"--test_file: every row of {table.name} has a test of its own")
            self.test_options = self._read_test(test, without_test)

    def _with_starts(self, wanted: Sequence[str], seeds: int) -> list[Row]:
        """Return the wanted runs and those that they start from, by seed."""
        runs, named = {str(run): run for run in self.table.runs(seeds)}, {*wanted}
        for name in wanted:
            if (row := name.partition("/")[0]) not in self.table.rows:
                rows = ", ".join(self.table.rows)
                raise InputError(f"--rows: {self.table.name} has no row {row!r}; there are {rows}")
            if name not in (row, *runs):
                of_row = ", ".join(each for each, run in runs.items() if run.name == row)
                raise InputError(f"--rows: {name}: no such run; there are {of_row}")
        for name, run in reversed(runs.items()):
            if run.name in named or name in named:
                named |= {name, f"{run.init_from}/{run.seed}"}
        return [run for name, run in runs.items() if name in named]

    def _has_files(self, row: Row) -> bool:
        """Return whether the data of a row is there; otherwise skip the row, or raise an `InputError`."""
        missing = next((file for _, file in self._paths(row) if not file.exists()), None)
        if missing is not None and not self.table.skip_absent:
            raise InputError(
                f"{missing}: no such file, for row {row.name} of {self.table.name}; name its folder with --data_dir"
            )
        if missing is not None:
            self.skipped[row.name] = f"{missing} is missing"
        return missing is None

    def run(self) -> None:
        """Run what is not finished, and write the results after every run."""
        for run in self.runs:
            self._result(run)  # refuses a run with other options or data before hours of training
        for run in self.runs:
            started = time.monotonic()
            try:
                was_finished = self._complete(run)
            except InputError as error:
                self.failed.append(str(run))
                print(visible(f"{run}: FAILED: {' '.join(str(error).split())}"), flush=True)
            else:
                metrics, took = self._metrics(run), time.monotonic() - started
                names = [name for key in SPLITS if (name := f"{key}/{self.table.metrics[0]}") in metrics]
                shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in names)
                print(visible(f"{run}: {shown}  ({'kept' if was_finished else f'{took:.0f} s'})"), flush=True)
            self.write()

    def write(self) -> list[Score]:
        """Write and return the scores of all finished rows of the folder, in the table's order."""
        # The last of several processes writes what all have finished.
        with lock_file(self.results.with_name(f".{self.results.name}.lock")):
            scores = [score for row in self.table.rows.values() for score in self._scores(row)]
            text = io.StringIO()
            lines = [Score._fields, *sorted(scores, key=lambda score: score[:4])]
            csv.writer(text, lineterminator="\n").writerows(lines)
            write_text(self.results, text.getvalue(), "--run_dir")
        return scores

    def _scores(self, row: Row) -> Iterator[Score]:
        """Yield the scores of a row with finished runs: the table's metrics, and those of the paper."""
        runs, model = self._finished(row), self.table.model_of(row).rpartition(".")[2]
        metrics = [f"{split}/{name}" for split in SPLITS for name in self.table.metrics]
        for metric in dict.fromkeys([*metrics, *row.paper]) if runs else ():
            unit = self.table.percent(metric, 1)
            values = [unit * run[metric] for run in runs if metric in run]
            mean = round(statistics.fmean(values), 2) if values else None
            sd = round(statistics.stdev(values), 2) if len(values) > 1 else None
            paper = round(unit * row.paper[metric], 2) if metric in row.paper else None
            if values or paper is not None:
                names = (self.table.name, row.name, model, metric)
                yield Score(*names, mean, sd, len(values), paper, __version__)

    def _finished(self, row: Row) -> list[dict[str, float]]:
        """Return the metrics of each of a row's finished runs."""
        results = []
        for file in sorted((self.out / row.name).glob("seed-*/result.json")):
            # A run with other options or data is not the row's, nor is one that `zoo fit` has moved to seed-1.1.
            with suppress(InputError, ValueError):
                results.append(self._metrics(replace(row, seed=int(file.parent.name.removeprefix("seed-")))))
        return results

    def _complete(self, run: Row) -> bool:
        """Train and test, each unless it is finished; return True if both were."""
        folder = self._folder(run)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Another process on the same table waits for the run, and keeps it then.
        with lock_file(folder.with_suffix(".lock")):
            result, test = self._result(run), self._test_identity(run)
            was_finished = bool(result) and (test is None or "tested" in result)
            if not result:
                shutil.rmtree(folder, ignore_errors=True)  # an interrupted run
                folder.with_suffix(".log").unlink(missing_ok=True)
                result = {"run": self._identity(run), "metrics": self._train(run)}
                write_json(folder / "result.json", result)
            if not was_finished and test is not None:
                write_json(folder / "result.json", {**result, "test": test, "tested": self._test(run)})
        return was_finished

    def _files(self, row: Row) -> PlainDict:
        return self.table.files_of(row, self.data_dir)

    def _paths(self, row: Row) -> Iterator[tuple[str, Path]]:
        """Yield option and path of each local file of a row."""
        for name, files in self._files(row).items():
            for file in [files] if isinstance(files, str) else files:
                if not file.startswith("hub:"):
                    yield name, Path(file)

    def _has_test(self, row: Row) -> bool:
        """Return whether the data set of a row comes with a test."""
        options = self.table.data_of(row, self.data_dir).options
        return options.tables["test"] is not None or options.is_split_off("test")

    def _without_absent_test(self, row: Row) -> Row:
        """Remove the test from a row of which only the test's files are missing."""
        missing = [name for name, file in self._paths(row) if not file.exists()]
        if not missing or not all(name.startswith("test_") for name in missing):
            return row
        kept = {key: value for key, value in row.overrides.items() if not key.startswith("data.test_")}
        return replace(row, overrides=kept)

    def _read_test(self, file: Path, row: Row) -> PlainDict:
        """Read a test before hours of training; return the options with which `zoo test` reads it."""
        with_header: PlainDict = {"test_file": str(file.resolve())}
        errors = []
        for options in (with_header, {**with_header, **self.table.columns_without_header}):
            try:
                self.table.data_of(row, self.data_dir, **options).read_tables(["test"])
            except InputError as error:
                errors.append(error)
            else:
                return options
        raise errors[0]

    def _folder(self, run: Row) -> Path:
        return self.out / run.name / f"seed-{run.seed}"

    def _start(self, run: Row) -> Row | None:
        """Return the run that another one starts from."""
        return None if run.init_from is None else replace(self.table.rows[run.init_from], seed=run.seed)

    def _metrics(self, run: Row) -> dict[str, float]:
        result = self._result(run)
        return {**result.get("metrics", {}), **result.get("tested", {})}

    def _result(self, run: Row) -> PlainDict:
        """Return the scores of a run, and of its test unless that is another one now; empty for an unfinished run."""
        folder = self._folder(run)
        if not (folder / "result.json").exists():
            return {}
        try:
            result: PlainDict = json.loads((folder / "result.json").read_text())
        except ValueError as error:
            raise InputError(f"{folder}/result.json: damaged; delete {folder} and run it again") from error
        if result["run"] != self._identity(run):
            raise InputError(f"{folder}: was run with other options or data; delete it or change --run_dir")
        if result.get("test") != self._test_identity(run):
            result.pop("tested", None)
        return result

    def _identity(self, run: Row) -> PlainDict:
        """Return the options and data of a run: if they are the same, a finished run is kept."""
        identity = {
            "base": self.table.base,
            "overrides": run.overrides,
            "seed": run.seed,
            "files": [(name, contents_of(file)) for name, file in self._paths(run)],
            "start": None if (start := self._start(run)) is None else self._identity(start),
        }
        return json.loads(json.dumps(identity))

    def _test_identity(self, row: Row) -> object:
        """Return what a test is kept for; None without a test."""
        if self._has_test(row):
            return "its own"
        return None if self.test_file is None else [self.test_file.name, contents_of(self.test_file)]

    def _train(self, run: Row) -> dict[str, float]:
        folder = self._folder(run)
        base, log = self.out / "base.yaml", folder.with_suffix(".log")
        write_text(base, yaml.safe_dump(self.table.base, sort_keys=False))
        files = {f"data.{name}": files for name, files in self._files(run).items()}
        options = {**run.overrides, **files, "seed_everything": run.seed, "run_dir": str(folder)}
        options |= {"trainer.enable_progress_bar": False, "trainer.enable_model_summary": False}
        if (start := self._start(run)) is not None:
            if not self._result(start):
                raise RowFailed(f"starts from {start}, which failed")
            options["model.init_from"] = str(self._folder(start))
        _zoo(["fit", "--config", str(base), *as_arguments(options)], log)
        summary = folder / "summary.json"
        if not summary.exists():  # written last
            raise RowFailed(f"the run ended before its end ({log})")
        figures = json.loads(summary.read_text())["best"].get("metrics", {})  # null = not finite
        return {name: value for name, value in figures.items() if value is not None}

    def _test(self, run: Row) -> dict[str, float]:
        folder, options = self._folder(run), self.test_options
        if self._has_test(run):
            names = self.table.data_type.options_type.test_files
            options = {name: files for name, files in self._files(run).items() if name in names}
        arguments = as_arguments({f"data.{name}": value for name, value in options.items()})
        command = ["test", f"--ckpt_path={folder}", f"--output={folder / 'test.json'}", *arguments]
        _zoo(command, folder.with_suffix(".log"))
        scores = json.loads((folder / "test.json").read_text())  # null = not finite
        return {f"test/{name}": float(each) for name, each in scores.items() if isinstance(each, int | float)}


def score_table(scores: Sequence[Score]) -> str:
    """Return a table in Markdown: a line for each row, a column for each metric, the paper's figures in brackets."""
    metrics = dict.fromkeys(score.metric for score in scores)
    lines = [["row", "model", *metrics, "runs"]]
    for (row, model), of_row in groupby(scores, key=lambda score: (score.row, score.model)):
        cells = {score.metric: score for score in of_row}
        runs = max(score.runs for score in cells.values())
        lines.append([row, model, *(str(cells.get(metric, "")) for metric in metrics), str(runs)])
    return f"# {visible(scores[0].table)}\n\n{markdown_table(lines)}"


def as_arguments(options: Mapping[str, object]) -> list[str]:
    """Write plain values as options of the command line."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
    return [f"--{key}={value}" for key, value in values.items()]


def _zoo(arguments: Sequence[str], log: Path) -> None:
    """Run a `zoo` command in a process of its own, and append its standard error to `log`."""
    with log.open("ab") as file:
        ended = subprocess.run(
            [*ZOO, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    if ended.returncode < 0:
        raise RowFailed(f"killed by {signal.Signals(-ended.returncode).name} ({log})")
    if ended.returncode:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {ended.returncode}"
        raise RowFailed(f"{reason.removeprefix('zoo: error: ')} ({log})")


def _die_with_parent() -> None:
    """Let Linux end this process with its parent, so that a killed table leaves no run behind."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def reproduce(
    name: str | None = None,
    data_dir: str | None = None,
    test_file: str | None = None,
    rows: str | None = None,
    seeds: int | None = None,
    run_dir: str | None = None,
    encoder: str | None = None,
) -> list[Score]:
    """Run a paper's table: every row for every seed, with the paper's figures. Without data, list them, or its runs.

    Writes `results.csv` into the folder of the table, and returns its lines. The same command resumes a killed table;
    finished runs are kept.

    Args:
        name: a table's name, or its YAML file.
        data_dir: the folder with the data.
        test_file: a table of test rows with the training file's columns, for rows whose data set comes without a test.
        rows: names of rows, or single runs as ROW/SEED, e.g. "M1,M7/2"; null: all. What they start from is run, too.
        seeds: runs of each row; null: the table's own number.
        run_dir: the table's folder; null: runs/reproduce/NAME. A row's runs are ROW/seed-1, ... in it.
        encoder: Hub name or folder of a transformer in place of the table's own.
    """
    if name is None and data_dir is None:
        for table in map(load_table, shipped_tables()):
            minutes = table.minutes
            time = f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
            print(f"{table.name:22} {time:>8}  {table.description}")
        return []
    if name is None:
        raise InputError("zoo reproduce: give a table; `zoo reproduce` alone shows them")
    if encoder is not None and Path(encoder).is_dir():
        encoder = str(Path(encoder).resolve())
    table = load_table(name, encoder)
    wanted = [*table.rows] if rows is None else [row.strip() for row in rows.split(",")]
    number = table.seeds if seeds is None else seeds
    check_count("seeds", number)
    if data_dir is None:
        print(*table.runs(number), sep="\n")
        return []
    out = Path(run_dir or f"runs/reproduce/{table.name}").resolve()
    test = None if test_file is None else Path(test_file)
    reproduction = Reproduction(table, wanted, number, Path(data_dir), test, out)
    for reason in dict.fromkeys(reproduction.skipped.values()):
        skipped = ", ".join(row for row, why in reproduction.skipped.items() if why == reason)
        print(visible(f"Skipped: {skipped}: {reason}."))
    with named_disk_errors(out, "--run_dir"):
        out.mkdir(parents=True, exist_ok=True)
    reproduction.run()
    scores = reproduction.write()
    if scores:
        print(score_table(scores), end="")
    print(visible(f"mean ± standard deviation over seeds (the paper's figure): {reproduction.results}"))
    if failed := reproduction.failed:
        raise RowFailed(f"{len(failed)} of the runs failed: {', '.join(failed)}")
    return scores
