"""The runs of a table: for each row and seed a `zoo fit` and a `zoo test` in their own folder and processes.

For a row with `grow`, `zoo memory add` and `zoo memory tune` replace the fit.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import yaml
from pyarrow import parquet

from datamodules.core.errors import InputError, visible
from datamodules.core.storage import contents_of, write_json, write_text
from datamodules.core.types import PlainDict
from zoo.reproduce.claims import HEARTBEAT, Claim, ClaimLost, claimed, clock, holder
from zoo.reproduce.data import RowData, read_test, without_absent_tests
from zoo.reproduce.plan import Plan, Run, by_urgency, speed
from zoo.reproduce.report import Report
from zoo.reproduce.table import SPLITS, Metrics, Row, Table
from zoo.saving.run_folder import read_run

#: How a run is started.
ZOO: tuple[str, ...] = (sys.executable, "-m", "zoo")

#: Seconds between two looks at the runs of other processes.
POLL = 5.0

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None)  # opened beforehand: a forked process should do little


class RowFailed(Exception):
    """A run failed; the message is the reason."""


class Reproduction:
    """A table in progress: folders, finished and failed runs."""

    def __init__(
        self, table: Table, rows: Sequence[str], seeds: int, data_dir: Path, test_file: Path | None, out: Path
    ) -> None:
        """Check the files of the wanted rows and of those that they start from; nothing runs yet."""
        self.table = without_absent_tests(table, data_dir) if table.skip_absent else table
        self.seeds, self.data_dir, self.test_file, self.out = seeds, data_dir, test_file, out
        #: row, or run -> the reason.
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        #: time of the file system at which `run` started, and its last message about runs on other machines.
        self._started, self._waits = 0.0, ""
        self.rows = self._check_files(rows)
        #: how `zoo test` reads the test of rows without a test of their own.
        self.test_options: PlainDict = {}
        if test_file is not None:
            without_test = [data for row in self.rows if not (data := self._data(row)).has_test]
            if not without_test:
                raise InputError(f"--test_file: every row of {table.name} has a test of its own")
            self.test_options = read_test(test_file, without_test[0])

    def _check_files(self, names: Sequence[str]) -> list[Row]:
        """The rows whose files exist."""
        rows = []
        for row in self.table.with_starts(names):
            missing = self._missing_file(row)
            if missing is None:
                rows.append(row)
            elif self.table.skip_absent:
                self.skipped[row.name] = f"{missing} is missing"
            else:
                raise InputError(
                    f"{missing}: no such file, but row {row.name} of {self.table.name} needs it; name the folder"
                    " that holds it with --data_dir"
                )
        if not rows:
            raise InputError(f"--data_dir {self.data_dir}: holds the data of no row of {self.table.name}")
        return rows

    def _missing_file(self, row: Row) -> Path | None:
        return next((file for _, file in self._data(row).paths() if not file.exists()), None)

    def _data(self, row: Row) -> RowData:
        return RowData(self.table, row, self.data_dir)

    def run(self) -> None:
        """Run what is not finished, together with all processes on the folder; write the table after every run."""
        for run in self._runs():
            self._trained(run)  # refuses a run with other options or data before hours of training
        self._started = clock(self.out)
        left = self._by_urgency(self._runs())
        while left:
            unsettled = [run for run in left if not self._is_settled(run)]
            if unsettled != left:
                self.report().write(self.out)
                left = self._by_urgency(unsettled)
            elif not any(self._attempt(run) for run in left if self._starts.get(run) not in left):
                self._wait(left)
        self.report().write_plot(self.out)

    def plan(self) -> Plan:
        """Return the runs, their states and durations."""
        measured = self._measured()
        finished = {run for run in self._runs() if self._is_finished(run)}
        hosts = {run: holder(self._folder(run)) for run in self._runs() if run not in finished}
        held = {run: host for run, host in hosts.items() if host is not None}
        return Plan(self.table, self._minutes(measured), self._starts, finished, held, measured.keys())

    def _by_urgency(self, runs: Sequence[Run]) -> list[Run]:
        return by_urgency(runs, self._minutes(self._measured()), self._starts)

    def _minutes(self, measured: Mapping[str, float]) -> dict[Run, float]:
        return {run: measured.get(run.row, self._equal_share) for run in self._runs()}

    def _measured(self) -> dict[str, float]:
        """Row -> minutes of its finished runs on the reference machine, their mean."""
        minutes = {row.name: [result["minutes"] for result in self._results(row)] for row in self.rows}
        known = {row: [run for run in runs if run is not None] for row, runs in minutes.items()}
        return {row: statistics.fmean(runs) for row, runs in known.items() if runs}

    def _runs(self) -> list[Run]:
        return [
            Run(row.name, seed)
            for seed in range(1, self.seeds + 1)
            for row in self.rows
            if seed <= self.table.seeds_of(row, self.seeds)
        ]

    @cached_property
    def _starts(self) -> dict[Run, Run]:
        """Run -> the run whose checkpoint it needs."""
        starts = {row.name: row.starts_from for row in self.rows}
        return {run: Run(start, run.seed) for run in self._runs() if (start := starts[run.row]) is not None}

    @cached_property
    def _equal_share(self) -> float:
        """Minutes of a run if all runs of the table, of rows with data, take equally long."""
        rows = [row for row in self.table.rows.values() if self._missing_file(row) is None]
        return self.table.minutes / sum(self.table.seeds_of(row, self.table.seeds) for row in rows)

    def _is_settled(self, run: Run) -> bool:
        """Report a run that is finished, or that failed since this command started, here or on another machine."""
        if self._is_finished(run):
            result = self._result(run)
            names = (f"{key}/{self.table.metrics[0]}" for key in SPLITS)
            figures = "  ".join(
                f"{name} {result['metrics'][name]:.4f}" for name in names if name in result["metrics"]
            )
            took = f"{result['seconds']:.0f} s on {result['host']}" if self._is_new(run) else "kept"
            print(visible(f"{run}: {figures}  ({took})"), flush=True)
        elif (reason := self._failure(run)) is not None:
            self.failed[str(run)] = reason
            print(visible(f"{run}: FAILED: {reason}"), flush=True)
        else:
            return False
        return True

    def _attempt(self, run: Run) -> bool:
        """Train and test a run; return False if another process holds it."""
        folder = self._folder(run)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with claimed(folder) as claim:
            if claim is None:
                return False
            for each in (folder.parent, folder):  # a network file system reads their entries again
                with suppress(FileNotFoundError):
                    os.listdir(each)
            if self._failure(run) is not None:
                return True  # another process has tried it since
            failed = folder.with_suffix(".failed")
            failed.unlink(missing_ok=True)
            try:
                try:
                    self._run_seed(run, claim)
                except Exception as error:  # of any kind: the other rows can be run
                    claim.renew()  # the failure may be that another machine has taken the run over
                    write_text(failed, " ".join(f"{error or type(error).__name__}".split()))
            except ClaimLost:
                print(visible(f"{run}: another machine has taken it over"), flush=True)
        return True

    def _wait(self, runs: Sequence[Run]) -> None:
        """Wait a moment for runs of other processes, which may end or die."""
        hosts = Counter(host for run in runs if (host := holder(self._folder(run))) is not None)
        message = f"waiting for runs on {', '.join(f'{host} ({hosts[host]})' for host in sorted(hosts))}"
        if hosts and message != self._waits:
            print(message, flush=True)
            self._waits = message
        time.sleep(POLL)

    def report(self) -> Report:
        """Return the table so far: the wanted rows, and others with finished runs in the folder."""
        results = {row.name: self._results(row) for row in self.table.rows.values()}
        wanted = {row.name for row in self.rows}
        rows = self.table.with_starts([name for name in self.table.rows if name in wanted or results[name]])
        return Report(self.table, rows, results, self.skipped, self.failed)

    def _results(self, row: Row) -> list[PlainDict]:
        """Results of a row's finished runs."""
        results = []
        for file in sorted((self.out / row.name).glob("seed-*/result.json")):
            # A run with other options or data is not the row's, nor is one that `zoo fit` has moved to seed-1.1.
            with suppress(InputError, ValueError):
                results.append(self._result(Run(row.name, int(file.parent.name.removeprefix("seed-")))))
        return results

    def _run_seed(self, run: Run, claim: Claim) -> None:
        """Train and test, each unless it is finished."""
        row, folder = self._row(run), self._folder(run)
        if self._trained(run) is None:
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted run
            folder.with_suffix(".log").unlink(missing_ok=True)
            started = time.monotonic()
            metrics = self._train(run, claim) if row.grow is None else self._grow(run, claim)
            result = {"run": self._identity(run), "metrics": metrics, **_cost(started)}
            claim.renew()
            write_json(folder / "result.json", result)
        if not self._is_finished(run):
            started = time.monotonic()
            result = {"test": self._test_identity(row), **self._test(row, folder, claim), **_cost(started)}
            claim.renew()
            write_json(folder / "tested.json", result)

    def _row(self, run: Run) -> Row:
        return self.table.rows[run.row]

    def _folder(self, run: Run) -> Path:
        return self.out / run.row / f"seed-{run.seed}"

    def _result(self, run: Run) -> PlainDict:
        """Metrics of a trained run and of its test, the test's queries, and the run's duration."""
        trained, tested = self._trained(run) or {}, self._tested(run) or {}
        metrics = {**trained.get("metrics", {}), **tested.get("metrics", {})}
        seconds = [(part["seconds"], part["speed"]) for part in (trained, tested) if "seconds" in part]
        return {
            "metrics": metrics,
            "queries": tested.get("queries", {}),
            "host": (tested or trained).get("host"),
            "seconds": sum(each for each, _ in seconds),
            # Results of earlier versions have no duration.
            "minutes": sum(each * speed for each, speed in seconds) / 60 if "seconds" in trained else None,
        }

    def _is_finished(self, run: Run) -> bool:
        """Return True if a run is trained, and tested if there is a test."""
        if self._trained(run) is None:
            return False
        return self._test_identity(self._row(run)) is None or self._tested(run) is not None

    def _is_new(self, run: Run) -> bool:
        """Return True if a run ended after this command started."""
        files = [self._folder(run) / name for name in ("result.json", "tested.json")]
        return any(file.stat().st_mtime > self._started for file in files if file.exists())

    def _failure(self, run: Run) -> str | None:
        """Return the reason of a failure after this command started; a run that failed before is repeated."""
        file = self._folder(run).with_suffix(".failed")
        try:
            return file.read_text(encoding="utf-8") if file.stat().st_mtime > self._started else None
        except FileNotFoundError:
            return None

    def _trained(self, run: Run) -> PlainDict | None:
        """Scores after training; None for an unfinished run."""
        folder = self._folder(run)
        if not (folder / "result.json").exists():
            return None
        try:
            scores: PlainDict = json.loads((folder / "result.json").read_text())
        except ValueError as error:
            raise InputError(f"{folder}/result.json: damaged; delete {folder} and run it again") from error
        if scores["run"] != self._identity(run):
            raise InputError(
                f"{folder}: was run with other options or data; delete it, or give another --run_dir"
            )
        return scores

    def _tested(self, run: Run) -> PlainDict | None:
        """Scores of the test; None if it is missing, or if the test is another one now."""
        file = self._folder(run) / "tested.json"
        scores: PlainDict = json.loads(file.read_text()) if file.exists() else {}
        return scores if scores.get("test") == self._test_identity(self._row(run)) else None

    def _identity(self, run: Run) -> PlainDict:
        """Options and data of a run: if they are the same, a finished run is kept."""
        row = self._row(run)
        files = [(name, contents_of(file)) for name, file in self._data(row).paths()]
        start = None if row.starts_from is None else self._identity(Run(row.starts_from, run.seed))
        identity = {"base": self.table.base, "overrides": row.overrides, "seed": run.seed, "files": files}
        identity |= {"start": start, "grow": row.grow}
        plain: PlainDict = json.loads(json.dumps(identity))
        return plain

    def _test_identity(self, row: Row) -> object:
        if self._data(row).has_test:
            return "its own"
        return None if self.test_file is None else [self.test_file.name, contents_of(self.test_file)]

    def _train(self, run: Run, claim: Claim) -> Metrics:
        row, folder = self._row(run), self._folder(run)
        base, log = self.out / "base.yaml", folder.with_suffix(".log")
        write_text(base, yaml.safe_dump(self.table.base, sort_keys=False))
        files = {f"data.{name}": files for name, files in self._data(row).files().items()}
        options = {**row.overrides, **files, "seed_everything": run.seed, "run_dir": str(folder)}
        options |= {"trainer.enable_progress_bar": False, "trainer.enable_model_summary": False}
        if row.init_from is not None:
            options["model.init_from"] = str(self._start(run))
        _zoo(["fit", "--config", str(base), *as_arguments(options)], log, claim)
        if not (folder / "summary.json").exists():  # written last
            raise RowFailed(f"the run ended before its end ({log})")
        _, figures = read_run(folder).best()
        return {name: value for name, value in figures.items() if name.startswith("val/")}

    def _grow(self, run: Run, claim: Claim) -> Metrics:
        """Add training rows to the memory of another row's model, and tune it on the validation rows."""
        row, start, folder = self._row(run), self._start(run), self._folder(run)
        assert row.grow is not None
        data = self._data(row).module(rows_per_class=row.grow.rows_per_class)
        rows = data.read_tables(["train", "validation"])
        model, log = folder / "checkpoints" / "best.ckpt", folder.with_suffix(".log")
        model.parent.mkdir(parents=True)
        shutil.copyfile(start, model)  # `add` copies the memory, too
        added, tuned = folder / "added.parquet", folder / "tuned.parquet"
        parquet.write_table(rows["train"].table, added)
        parquet.write_table(rows["validation"].table, tuned)
        columns = ["--text_column=text", "--label_column=label"]
        _zoo(["memory", "add", str(model), str(added), *columns], log, claim)
        _zoo(["memory", "tune", str(model), str(tuned), *columns], log, claim)
        _zoo(["validate", f"--ckpt_path={model}", f"--output={folder / 'validation.json'}"], log, claim)
        return _metrics(json.loads((folder / "validation.json").read_text()), "val")

    def _start(self, run: Run) -> Path:
        """The checkpoint that a run starts from."""
        start = self._starts[run]
        if not (self._folder(start) / "result.json").exists():
            raise RowFailed(f"starts from {start}, which failed")
        return self._folder(start) / "checkpoints" / "best.ckpt"

    def _test(self, row: Row, folder: Path, claim: Claim) -> PlainDict:
        data, output = self._data(row), folder / "test.json"
        # A test of its own: its files, or the table that it is split from.
        names = self.table.data_type.options_type.test_files
        own = {name: files for name, files in data.files().items() if name in names}
        options = own if data.has_test else self.test_options
        arguments = as_arguments({f"data.{name}": value for name, value in options.items()})
        checkpoint = folder / "checkpoints" / "best.ckpt"
        command = ["test", f"--ckpt_path={checkpoint}", f"--output={output}", *arguments]
        _zoo(command, folder.with_suffix(".log"), claim)
        scores = json.loads(output.read_text())
        return {"metrics": _metrics(scores, "test"), "queries": scores.get("by_query", {})}


def as_arguments(options: Mapping[str, object]) -> list[str]:
    """Write plain values as options of the command line."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
    return [f"--{key}={value}" for key, value in values.items()]


def _cost(started: float) -> PlainDict:
    """Facts for the plan of other runs: the seconds since `started` (of `time.monotonic`), and where they passed."""
    seconds = time.monotonic() - started
    return {"seconds": round(seconds, 1), "speed": round(speed(), 3), "host": socket.gethostname()}


def _zoo(arguments: Sequence[str], log: Path, claim: Claim) -> None:
    """Run a `zoo` command in a process of its own while the claim lasts, and append its standard error to `log`."""
    with log.open("ab") as file:
        ended = subprocess.Popen(
            [*ZOO, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        while ended.returncode is None:
            claim.renew()
            with suppress(subprocess.TimeoutExpired):
                ended.wait(HEARTBEAT)
    finally:
        ended.kill()
        ended.wait()
    if ended.returncode < 0:
        raise RowFailed(f"killed by {signal.Signals(-ended.returncode).name} ({log})")
    if ended.returncode:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {ended.returncode}"
        raise RowFailed(f"{reason.removeprefix('zoo: error: ')} ({log})")


def _die_with_parent() -> None:
    """Let Linux end this process with its parent, so that a killed table leaves no run behind."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _metrics(scores: PlainDict, stage: str) -> Metrics:
    """The metrics in an output of `zoo validate` or `zoo test`, with those of a model's own table."""
    rows = {row["name"]: row["accuracy"] for row in scores.get("answer", {"rows": []})["rows"]}
    # Values that are not finite are null.
    numbers = {name: value for name, value in {**scores, **rows}.items() if isinstance(value, int | float)}
    return {f"{stage}/{name}": float(value) for name, value in numbers.items()}
