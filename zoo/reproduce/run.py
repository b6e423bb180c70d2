"""The runs of a table: for each row and seed a `zoo fit` and a `zoo test` in their own folder and processes.

For a row with `grow`, `zoo memory add` and `zoo memory tune` replace the fit.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from pyarrow import parquet

from datamodules.core.errors import InputError, visible
from datamodules.core.storage import contents_of, write_json
from datamodules.core.types import PlainDict
from zoo.reproduce.data import RowData, read_test, without_absent_tests
from zoo.reproduce.report import Report
from zoo.reproduce.table import SPLITS, Metrics, Row, Table
from zoo.saving.run_folder import read_run

#: How a run is started.
ZOO: tuple[str, ...] = (sys.executable, "-m", "zoo")

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
            missing = next((file for _, file in self._data(row).paths() if not file.exists()), None)
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

    def _data(self, row: Row) -> RowData:
        return RowData(self.table, row, self.data_dir)

    def run(self) -> None:
        """Run what is not finished, and write the table after every run."""
        runs = [
            (row, seed)
            for seed in range(1, self.seeds + 1)
            for row in self.rows
            if seed <= self.table.seeds_of(row, self.seeds)
        ]
        for row, seed in runs:
            self._trained(row, seed)  # refuses a run with other options or data before hours of training
        for row, seed in runs:
            self._attempt(row, seed)
            self.report().write(self.out)
        self.report().write_plot(self.out)

    def _attempt(self, row: Row, seed: int) -> None:
        title, started = f"{row.name}, seed {seed}", time.monotonic()
        try:
            is_kept = self._run_seed(row, seed)
        except Exception as error:  # of any kind: the other rows can be run
            self.failed[title] = " ".join(f"{error or type(error).__name__}".split())
            print(visible(f"{title}: FAILED: {self.failed[title]}"), flush=True)
        else:
            metrics = self._result(row, seed)["metrics"]
            names = (f"{key}/{self.table.metrics[0]}" for key in SPLITS)
            figures = "  ".join(f"{name} {metrics[name]:.4f}" for name in names if name in metrics)
            took = "kept" if is_kept else f"{time.monotonic() - started:.0f} s"
            print(visible(f"{title}: {figures}  ({took})"), flush=True)

    def report(self) -> Report:
        """Return the table so far: the wanted rows, and others with finished runs in the folder."""
        results = {row.name: self._results(row) for row in self.table.rows.values()}
        wanted = {row.name for row in self.rows}
        rows = self.table.with_starts([name for name in self.table.rows if name in wanted or results[name]])
        return Report(self.table, rows, results, self.skipped, self.failed)

    def _results(self, row: Row) -> list[PlainDict]:
        """Metrics and queries of a row's finished runs."""
        results = []
        for file in sorted((self.out / row.name).glob("seed-*/result.json")):
            # A run with other options or data is not the row's.
            with suppress(InputError):
                results.append(self._result(row, int(file.parent.name.removeprefix("seed-"))))
        return results

    def _run_seed(self, row: Row, seed: int) -> bool:
        """Train and test, each unless it is finished; return whether both were."""
        folder, test = self._folder(row, seed), self._test_identity(row)
        is_trained = self._trained(row, seed) is not None
        if not is_trained:
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted run
            folder.with_suffix(".log").unlink(missing_ok=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            metrics = self._train(row, seed) if row.grow is None else self._grow(row, seed)
            write_json(folder / "result.json", {"run": self._identity(row, seed), "metrics": metrics})
        is_tested = test is None or self._tested(row, seed) is not None
        if not is_tested:
            write_json(folder / "tested.json", {"test": test, **self._test(row, folder)})
        return is_trained and is_tested

    def _folder(self, row: Row, seed: int) -> Path:
        return self.out / row.name / f"seed-{seed}"

    def _result(self, row: Row, seed: int) -> PlainDict:
        """Metrics of a trained run and of its test, and the test's queries."""
        trained, tested = self._trained(row, seed) or {}, self._tested(row, seed) or {}
        metrics = {**trained.get("metrics", {}), **tested.get("metrics", {})}
        return {"metrics": metrics, "queries": tested.get("queries", {})}

    def _trained(self, row: Row, seed: int) -> PlainDict | None:
        """Scores after training; None for an unfinished run."""
        folder = self._folder(row, seed)
        if not (folder / "result.json").exists():
            return None
        try:
            scores: PlainDict = json.loads((folder / "result.json").read_text())
        except ValueError as error:
            raise InputError(f"{folder}/result.json: damaged; delete {folder} and run it again") from error
        if scores["run"] != self._identity(row, seed):
            raise InputError(
                f"{folder}: was run with other options or data; delete it, or give another --run_dir"
            )
        return scores

    def _tested(self, row: Row, seed: int) -> PlainDict | None:
        """Scores of the test; None if it is missing, or if the test is another one now."""
        file = self._folder(row, seed) / "tested.json"
        scores: PlainDict = json.loads(file.read_text()) if file.exists() else {}
        return scores if scores.get("test") == self._test_identity(row) else None

    def _identity(self, row: Row, seed: int) -> PlainDict:
        """Options and data of a run: if they are the same, a finished run is kept."""
        files = [(name, contents_of(file)) for name, file in self._data(row).paths()]
        start = None if row.starts_from is None else self._identity(self.table.rows[row.starts_from], seed)
        identity = {"base": self.table.base, "overrides": row.overrides, "seed": seed, "files": files}
        identity |= {"start": start, "grow": row.grow}
        plain: PlainDict = json.loads(json.dumps(identity))
        return plain

    def _test_identity(self, row: Row) -> object:
        if self._data(row).has_test:
            return "its own"
        return None if self.test_file is None else [self.test_file.name, contents_of(self.test_file)]

    def _train(self, row: Row, seed: int) -> Metrics:
        folder = self._folder(row, seed)
        base, log = self.out / "base.yaml", folder.with_suffix(".log")
        base.write_text(yaml.safe_dump(self.table.base, sort_keys=False))
        files = {f"data.{name}": files for name, files in self._data(row).files().items()}
        options = {**row.overrides, **files, "seed_everything": seed, "run_dir": str(folder)}
        options |= {"trainer.enable_progress_bar": False, "trainer.enable_model_summary": False}
        if row.init_from is not None:
            options["model.init_from"] = str(self._start(row, seed))
        _zoo(["fit", "--config", str(base), *as_arguments(options)], log)
        if not (folder / "summary.json").exists():  # written last
            raise RowFailed(f"the run ended before its end ({log})")
        _, figures = read_run(folder).best()
        return {name: value for name, value in figures.items() if name.startswith("val/")}

    def _grow(self, row: Row, seed: int) -> Metrics:
        """Add training rows to the memory of another row's model, and tune it on the validation rows."""
        assert row.grow is not None
        start, folder = self._start(row, seed), self._folder(row, seed)
        data = self._data(row).module(rows_per_class=row.grow.rows_per_class)
        rows = data.read_tables(["train", "validation"])
        model, log = folder / "checkpoints" / "best.ckpt", folder.with_suffix(".log")
        model.parent.mkdir(parents=True)
        shutil.copyfile(start, model)  # `add` copies the memory, too
        added, tuned = folder / "added.parquet", folder / "tuned.parquet"
        parquet.write_table(rows["train"].table, added)
        parquet.write_table(rows["validation"].table, tuned)
        columns = ["--text_column=text", "--label_column=label"]
        _zoo(["memory", "add", str(model), str(added), *columns], log)
        _zoo(["memory", "tune", str(model), str(tuned), *columns], log)
        _zoo(["validate", f"--ckpt_path={model}", f"--output={folder / 'validation.json'}"], log)
        return _metrics(json.loads((folder / "validation.json").read_text()), "val")

    def _start(self, row: Row, seed: int) -> Path:
        """The checkpoint that a run starts from."""
        start = self.table.rows[str(row.starts_from)]
        if not (self._folder(start, seed) / "result.json").exists():
            raise RowFailed(f"starts from {start.name}, seed {seed}, which failed")
        return self._folder(start, seed) / "checkpoints" / "best.ckpt"

    def _test(self, row: Row, folder: Path) -> PlainDict:
        data, output = self._data(row), folder / "test.json"
        # A test of its own: its files, or the table that it is split from.
        names = self.table.data_type.options_type.test_files
        own = {name: files for name, files in data.files().items() if name in names}
        options = own if data.has_test else self.test_options
        arguments = as_arguments({f"data.{name}": value for name, value in options.items()})
        checkpoint = folder / "checkpoints" / "best.ckpt"
        command = ["test", f"--ckpt_path={checkpoint}", f"--output={output}", *arguments]
        _zoo(command, folder.with_suffix(".log"))
        scores = json.loads(output.read_text())
        return {"metrics": _metrics(scores, "test"), "queries": scores.get("by_query", {})}


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
            check=False,
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


def _metrics(scores: PlainDict, stage: str) -> Metrics:
    """The metrics in an output of `zoo validate` or `zoo test`, with those of a model's own table."""
    rows = {row["name"]: row["accuracy"] for row in scores.get("answer", {"rows": []})["rows"]}
    # Values that are not finite are null.
    numbers = {name: value for name, value in {**scores, **rows}.items() if isinstance(value, int | float)}
    return {f"{stage}/{name}": float(value) for name, value in numbers.items()}
