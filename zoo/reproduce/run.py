"""The runs of a table: every row for every seed, kept where they are done, gone on with where they are not.

Every row and seed is a `zoo fit` of its own, in a process and a folder of its own, then a `zoo test` of the checkpoint
that was best on validation rows: a row that fails takes nothing with it, and a killed table goes on at the run where
it stopped. Only rows whose memory grows (`grow`) are made here, of another row's model.
"""

from __future__ import annotations

import csv
import ctypes
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from datamodules.base import TextDataModule
from datamodules.core.errors import InputError
from datamodules.core.storage import contents_of, write_json
from datamodules.corpora.rows import Rows
from zoo.memory.growth import TUNED, UNTUNED, grow
from zoo.reproduce.report import Report
from zoo.reproduce.significance import keep_queries
from zoo.reproduce.table import SPLITS, Metrics, Row, Table, in_order
from zoo.saving.checkpoint import CHECKPOINT_KEY, read_checkpoint

#: How a run is started.
ZOO: tuple[str, ...] = (sys.executable, "-m", "zoo")


class RowFailed(Exception):
    """A row's run ended badly; the message is its reason."""


@dataclass(frozen=True)
class TestFile:
    """The test file, and what `zoo test` must know to read it besides what the checkpoint says."""

    file: Path
    columns: Mapping[str, Any]

    @property
    def identity(self) -> list[Any]:
        """Another file of the same name is another test."""
        return [self.file.name, contents_of(self.file)]


class Reproduction:
    """A table on its way: folders, what is done, and what has failed."""

    def __init__(
        self, table: Table, rows: Sequence[Row], seeds: int, data_dir: Path, test_file: Path | None, out: Path
    ) -> None:
        """Check that everything needed is there; nothing runs yet.

        Args:
            table: the table.
            rows: those of its rows that are wanted.
            seeds: runs of each row.
            data_dir: what relative file names of the table are under.
            test_file: the test of rows whose data brings none; None = validation figures only.
            out: the table's folder.

        Raises:
            InputError: a file is missing, or the test file can't be read.
        """
        self.table, self.seeds, self.data_dir, self.out = table, seeds, data_dir, out
        self.skipped: dict[str, str] = {}
        if table.skip_absent:
            self._leave_out_absent_tests()
        self.rows = []
        for row in (self.table.rows[row.name] for row in rows):
            missing = self._missing(row)
            if not missing:
                self.rows.append(row)
            elif table.skip_absent:
                self.skipped[row.name] = f"{missing[0][1]} is not there"
            else:
                raise InputError(
                    f"{missing[0][1]}: no such file, but row {row.name} of {table.name} needs it; name the folder"
                    " that holds it with --data_dir"
                )
        if not self.rows:
            raise InputError(f"--data_dir {data_dir}: holds the data of no row of {table.name}")
        self.test = None if test_file is None else self._read_test(test_file)
        self.results: dict[str, list[Metrics]] = {row.name: [] for row in self.rows}
        self.failed: dict[str, str] = {}

    # --- a row's data ---

    def _missing(self, row: Row) -> list[tuple[str, Path]]:
        return [(name, file) for name, file in self._each_file(row) if not file.exists()]

    def _leave_out_absent_tests(self) -> None:
        """Rows of which nothing but their own test is missing are run without it."""
        rows = dict(self.table.rows)
        for row in rows.values():
            missing = self._missing(row)
            if missing and all(name.startswith("test_") for name, _ in missing):
                kept = {
                    key: value for key, value in row.overrides.items() if not key.startswith("data.test_")
                }
                rows[row.name] = replace(row, overrides=kept)
        self.table = replace(self.table, rows=rows)

    def _files(self, row: Row) -> dict[str, str | list[str]]:
        """Where the files are that the row's data is read from, by option: one, or a list of them."""
        options = self.table.data_options(row)
        found: dict[str, str | list[str]] = {}
        for name in self.table.data_type.files:
            value = options.get(name)
            if isinstance(value, list) and name not in self.table.data_type.no_file_lists:
                found[name] = [self._place(file) for file in value]
            elif isinstance(value, str) and not value.startswith("hub:"):
                found[name] = self._place(value)
        return found

    def _place(self, file: str) -> str:
        return file if file.startswith("hub:") else str((self.data_dir / file).resolve())

    def _each_file(self, row: Row) -> Iterator[tuple[str, Path]]:
        """The row's files one by one: option, or option and number, and path."""
        for name, files in self._files(row).items():
            if isinstance(files, str):
                yield name, Path(files)
            else:
                places = ((f"{name}[{i}]", file) for i, file in enumerate(files))
                yield from ((place, Path(file)) for place, file in places if not file.startswith("hub:"))

    def _data(self, row: Row, **changes: Any) -> TextDataModule[Any, Any]:
        """The row's data module; nothing is read yet.

        Args:
            row: a row of the table.
            **changes: options in place of the row's.
        """
        options = {**self.table.data_options(row), **self._files(row)}
        # Neither vectors nor memories are of use here.
        no_use = {"retriever", "word_vectors", "memory"}
        options = {key: value for key, value in options.items() if key.partition(".")[0] not in no_use}
        data = self.table.data_type(**options | changes)
        data.leave_out_memory()
        return data

    def _read_test(self, file: Path) -> TestFile:
        """Read the test before hours of training, not after."""
        row = next((row for row in self.rows if not self._brings_its_test(row)), None)
        if row is None:
            raise InputError(f"--test_file: the data of every row of {self.table.name} brings its own test")
        other = self.table.columns_without_header or {}
        first: InputError | None = None
        for columns in ({}, other) if other else ({},):
            try:
                self._data(row, test_file=str(file), **columns).read_tables(["test"])
            except InputError as error:
                first = first or error  # the one to explain
            else:
                return TestFile(file.resolve(), columns)
        assert first is not None
        raise first

    def _brings_its_test(self, row: Row) -> bool:
        return self._data(row).has_test_table

    # --- running ---

    def run(self) -> None:
        """Run what is not done yet, and write the table after every run.

        Raises:
            InputError: a finished run in the folder was run with other options or data.
        """
        wanted = list(self.rows)
        runs = [
            (row, seed)
            for seed in range(1, self.seeds + 1)
            for row in wanted
            if seed <= self.table.seeds_of(row, self.seeds)
        ]
        for row, seed in runs:
            self._finished(self._folder(row, seed), self._identity(row, seed))
        self._take_others()
        for row, seed in runs:
            self._attempt(row, seed)
        self.report().write(self.out)
        self.report().write_plot(self.out)

    def _take_others(self) -> None:
        """Take rows and seeds that were not asked for but are finished: a folder's table only grows."""
        wanted = {row.name for row in self.rows}
        for row in self.table.rows.values():
            for seed in count(self.seeds + 1 if row.name in wanted else 1):
                try:
                    done = self._finished(self._folder(row, seed), self._identity(row, seed))
                except InputError:  # of other options or data: not this table's
                    break
                if done is None:
                    break
                tested = done["test"] == self._test_identity(row)
                metrics = {
                    key: value for key, value in done["metrics"].items() if tested or "test/" not in key
                }
                self.results.setdefault(row.name, []).append(metrics)
        self.rows = [row for row in in_order(self.table, list(self.table.rows)) if row.name in self.results]

    def _attempt(self, row: Row, seed: int) -> None:
        title = f"{row.name}, seed {seed}"
        started = time.monotonic()
        try:
            metrics, kept = self._run_seed(row, seed)
        except Exception as error:  # whatever it is, the other rows can be run
            self.failed[title] = " ".join(f"{error or type(error).__name__}".split())
            print(f"{title}: FAILED: {self.failed[title]}", flush=True)
        else:
            self.results[row.name].append(metrics)
            first = (f"{key}/{self.table.metrics[0]}" for key in SPLITS)
            shown = "  ".join(f"{key} {metrics[key]:.4f}" for key in first if key in metrics)
            took = "kept" if kept else f"{time.monotonic() - started:.0f} s"
            print(f"{title}: {shown}  ({took})", flush=True)
        self.report().write(self.out)

    def _run_seed(self, row: Row, seed: int) -> tuple[Metrics, bool]:
        """Metrics of a run, and whether they were there already."""
        folder = self._folder(row, seed)
        identity, test = self._identity(row, seed), self._test_identity(row)
        done = self._finished(folder, identity)
        if done is None:
            shutil.rmtree(folder, ignore_errors=True)  # half a run
            metrics = self._train(row, seed, folder) if row.grow is None else self._grow(row, seed, folder)
            done = {"run": identity, "test": None, "metrics": metrics}
            write_json(folder / "result.json", done)
        elif test is None or done["test"] == test:
            return done["metrics"], True
        if test is not None:
            others = {key: value for key, value in done["metrics"].items() if not key.startswith("test/")}
            done |= {"test": test, "metrics": {**others, **self._test(row, folder)}}
            write_json(folder / "result.json", done)
        return done["metrics"], False

    def _folder(self, row: Row, seed: int) -> Path:
        return self.out / row.name / f"seed-{seed}"

    def _finished(self, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
        """What `result.json` says; None if the run was never finished."""
        file = folder / "result.json"
        try:
            done: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{file}: damaged; delete {folder} and run the same command again") from error
        if done["run"] != identity:
            raise InputError(
                f"{folder}: was run with other options or data; delete it, or give another --run_dir"
            )
        return done

    def _identity(self, row: Row, seed: int) -> dict[str, Any]:
        """What a finished run must have been run with to be kept; where the data lies does not matter."""
        files = {name: contents_of(file) for name, file in self._each_file(row) if file.exists()}
        identity = {"base": self.table.base, "overrides": row.overrides, "seed": seed, "files": files}
        if row.grow is not None:
            identity["grow"] = {"rows_per_class": row.grow.rows_per_class}
        if row.starts_from is not None:
            identity["init_from"] = self._identity(self.table.rows[row.starts_from], seed)
        plain: dict[str, Any] = json.loads(json.dumps(identity))
        return plain

    def _test_identity(self, row: Row) -> Any:
        if self._brings_its_test(row):
            return "its own"
        return None if self.test is None else self.test.identity

    def _train(self, row: Row, seed: int, folder: Path) -> Metrics:
        options = {**row.overrides, **{f"data.{name}": value for name, value in self._files(row).items()}}
        if row.init_from is not None:
            options["model.init_from"] = str(self._start(row, seed))
        options |= {
            "seed_everything": seed,
            "run_dir": str(folder),
            "trainer.enable_progress_bar": False,
            "trainer.enable_model_summary": False,
        }
        base = self.out / "base.yaml"
        base.write_text(yaml.safe_dump(dict(self.table.base), sort_keys=False))
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        _zoo(["fit", "--config", str(base), *as_arguments(options)], log)
        if not (folder / "summary.json").exists():
            raise RowFailed(f"the run ended before its end ({log})")  # a fit's last file
        if self.table.compare_with is not None:
            best = read_checkpoint(folder / "checkpoints" / "best.ckpt")
            keep_queries(folder, "val", best[CHECKPOINT_KEY].get("by_query", {}))
        # Pairs to classify, from which a ranking starts, have a figure of their own.
        return _best_epoch(folder / "metrics.csv", self._data(row).monitor)

    def _grow(self, row: Row, seed: int, folder: Path) -> Metrics:
        assert row.grow is not None
        start = self._start(row, seed)
        data = self._data(row, rows_per_class=row.grow.rows_per_class)
        tables = data.read_tables(["train", "validation"])
        if not isinstance(tables["train"], Rows):
            raise RowFailed("grow: only a memory of labelled training rows grows to a larger sample of them")
        return grow(start, tables["train"], tables["validation"], folder, seed)

    def _start(self, row: Row, seed: int) -> Path:
        """The checkpoint that the row starts from."""
        assert row.starts_from is not None
        other = self.out / row.starts_from / f"seed-{seed}"
        if not (other / "result.json").exists():
            raise RowFailed(f"starts from {row.starts_from}, seed {seed}, which failed")
        return other / "checkpoints" / "best.ckpt"

    def _test(self, row: Row, folder: Path) -> Metrics:
        """Metrics of the test; of a grown memory also the accuracy before its vote was refitted."""
        checkpoints = folder / "checkpoints"
        if row.grow is None:
            return self._test_checkpoint(row, checkpoints / "best.ckpt", folder)
        untuned = self._test_checkpoint(row, checkpoints / UNTUNED, folder)
        tuned = self._test_checkpoint(row, checkpoints / TUNED, folder)
        return {"test/accuracy_untuned": untuned["test/accuracy"], **tuned}

    def _test_checkpoint(self, row: Row, checkpoint: Path, folder: Path) -> Metrics:
        metrics = folder / "test.json"
        options: dict[str, Any] = {"output": str(metrics)}
        if self._brings_its_test(row):
            # Where the test lies, or the table that it is split off.
            read = self.table.data_type.test_files
            options |= {f"data.{name}": value for name, value in self._files(row).items() if name in read}
        else:
            assert self.test is not None
            options["data.test_file"] = str(self.test.file)
            options |= {f"data.{name}": value for name, value in self.test.columns.items()}
        _zoo(["test", "--ckpt_path", str(checkpoint), *as_arguments(options)], folder.with_suffix(".log"))
        # What has no value (a loss that is infinite) is null.
        found = {name: value for name, value in json.loads(metrics.read_text()).items() if value is not None}
        keep_queries(folder, "test", found.pop("by_query", {}))
        # The table of a model that compares itself with others: a metric for each of its rows.
        lines = found.pop("answer", {"rows": []})["rows"]
        found |= {line["name"]: line["accuracy"] for line in lines}
        return {f"test/{name}": float(value) for name, value in found.items()}

    def report(self) -> Report:
        """The table as far as it is done."""
        return Report(self.table, self.rows, self.results, self.skipped, self.failed)


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options of the command line from plain values."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in options.items()}
    return [f"--{key}={value}" for key, value in values.items()]


def _zoo(arguments: Sequence[str], log: Path) -> None:
    """Run a `zoo` command in a process of its own; its standard error goes to the end of `log`."""
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
    """Ask Linux to end this process with its parent: a killed table leaves no run behind that goes on."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    _LIBC.prctl(set_parent_death_signal, signal.SIGKILL)


_LIBC = ctypes.CDLL(None)  # opened beforehand: a process that has just been forked should do little


def _best_epoch(file: Path, monitor: str) -> Metrics:
    """The validation figures of the epoch whose checkpoint was kept: the first of the highest `monitor`."""
    with file.open(newline="") as lines:
        epochs = [line for line in csv.DictReader(lines) if line.get(monitor)]
    best = max(epochs, key=lambda line: float(line[monitor]))
    return {name: float(value) for name, value in best.items() if name.startswith("val/") and value}
