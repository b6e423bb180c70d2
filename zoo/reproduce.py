"""`zoo reproduce`: a paper's table again, from one YAML: every row for every seed, beside the paper's figures.

A table (`zoo/tables/*.yaml`, or a file of yours) has a base configuration and rows; a row is a set of options
on top of it. Every row and seed is a `zoo fit` of its own, in a process and a folder of its own, then a `zoo
test` of the checkpoint that was best on validation rows: a row that fails takes nothing with it, and a killed
table goes on at the run where it stopped. Rows that need no training are computed here: simple rules (majority, a vote
of BM25 neighbours, TF-IDF with a linear SVM; of pairs of texts those of `zoo.simple_scores`) on the same training,
validation and test rows, and the model of another row whose memory grows (`grow`).
"""

from __future__ import annotations

import csv
import ctypes
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from filelock import FileLock, Timeout
from jsonargparse import ArgumentParser

from datamodules.classification import ClassificationDataModule
from datamodules.corpora.table import Rows, read_table
from datamodules.errors import InputError
from datamodules.matching import MatchingDataModule
from datamodules.storage import write_json
from zoo.growth import TUNED, UNTUNED, grow
from zoo.simple_labels import label_metrics
from zoo.simple_scores import simple_metrics
from zoo.table import Row, Table, in_order, load_table, shipped_tables

Metrics: TypeAlias = dict[str, float]
#: row -> metric -> mean, sd, n (runs in them), paper (the paper's figure); None where there is none.
Figures: TypeAlias = dict[str, dict[str, dict[str, float | None]]]

#: How a run is started.
ZOO: tuple[str, ...] = (sys.executable, "-m", "zoo")
#: Options that name files: relative names are under --data_dir.
FILES = ("train_file", "validation_file", "test_file", "memory", "word_vectors", "dataset_folder")
SPLITS = {"val": "validation", "test": "test"}


# --- running ---


class RowFailed(Exception):
    """A row's run ended badly; the message is its reason."""


@dataclass(frozen=True)
class TestFile:
    """The test file, and what `zoo test` must know to read it besides what the checkpoint says."""

    file: Path
    #: None where they are pairs, which their data module reads.
    rows: Rows | None
    columns: Mapping[str, Any]

    @property
    def identity(self) -> list[Any]:
        """Another file of the same name is another test."""
        return [self.file.name, *_file_identity(self.file)]


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
        self.rows = []
        for row in rows:
            missing = [str(file) for _, file in self._files(row) if not file.exists()]
            if not missing:
                self.rows.append(row)
            elif table.skip_absent:
                self.skipped[row.name] = f"{missing[0]} is not there"
            else:
                raise InputError(
                    f"{missing[0]}: no such file, but row {row.name} of {table.name} needs it; name the folder"
                    " that holds it with --data_dir"
                )
        if not self.rows:
            raise InputError(f"--data_dir {data_dir}: holds the data of no row of {table.name}")
        self.test = None if test_file is None else self._read_test(test_file)
        self.results: dict[str, list[Metrics]] = {row.name: [] for row in self.rows}
        self.failed: dict[str, str] = {}

    def _files(self, row: Row) -> Iterator[tuple[str, Path]]:
        options = self.table.data_options(row)
        for name in FILES:
            value = options.get(name)
            if isinstance(value, str) and not value.startswith("hub:"):
                yield name, (self.data_dir / value).resolve()

    def _read_test(self, file: Path) -> TestFile:
        """Read the test before hours of training, not after."""
        row = next((row for row in self.rows if not self._brings_its_test(row)), None)
        if row is None:
            raise InputError(f"--test_file: the data of every row of {self.table.name} brings its own test")
        if self.table.is_of_pairs:
            test = TestFile(file.resolve(), None, {})
            self._pairs(row, test)
            return test
        options = self.table.data_options(row)
        names = ("text_column", "label_column", "id_column", "header", "class_names")
        columns = {name: options[name] for name in names if name in options}
        other = self.table.columns_without_header or {}
        try:
            return TestFile(file.resolve(), read_table(str(file), **columns), {})
        except InputError:
            if not other or not file.exists():
                raise
            try:
                return TestFile(file.resolve(), read_table(str(file), **{**columns, **other}), other)
            except InputError:
                pass  # the first reading is the one to explain
            raise

    def _brings_its_test(self, row: Row) -> bool:
        options = self.table.data_options(row)
        return any(options.get(name) is not None for name in ("dataset", "test_file", "test_split"))

    def run(self) -> None:
        """Run what is not done yet, and write the table after every run.

        Raises:
            InputError: a finished run in the folder was run with other options or data.
        """
        wanted = list(self.rows)
        for row in wanted:
            for seed in (None,) if row.trivial else range(1, self.seeds + 1):
                self._finished(self._folder(row, seed), self._identity(row, seed))
        self._take_others()
        for row in wanted:
            if row.trivial is not None:
                self._attempt(row, None)
        for seed in range(1, self.seeds + 1):
            for row in wanted:
                if row.trivial is None:
                    self._attempt(row, seed)
        self.write_plot()

    def _take_others(self) -> None:
        """Take rows and seeds that were not asked for but are finished: a folder's table only grows."""
        wanted = {row.name for row in self.rows}
        for row in self.table.rows.values():
            seeds: Iterable[int | None] = count(self.seeds + 1 if row.name in wanted else 1)
            if row.trivial:
                seeds = () if row.name in wanted else (None,)
            for seed in seeds:
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

    def _attempt(self, row: Row, seed: int | None) -> None:
        title = row.name if seed is None else f"{row.name}, seed {seed}"
        started = time.monotonic()
        try:
            metrics, kept = self._run_row(row) if seed is None else self._run_seed(row, seed)
        except Exception as error:  # whatever it is, the other rows can be run
            self.failed[title] = " ".join(f"{error or type(error).__name__}".split())
            print(f"{title}: FAILED: {self.failed[title]}", flush=True)
        else:
            self.results[row.name].append(metrics)
            first = (f"{key}/{self.table.metrics[0]}" for key in SPLITS)
            shown = "  ".join(f"{key} {metrics[key]:.4f}" for key in first if key in metrics)
            took = "kept" if kept else f"{time.monotonic() - started:.0f} s"
            print(f"{title}: {shown}  ({took})", flush=True)
        self.write()

    def _run_row(self, row: Row) -> tuple[Metrics, bool]:
        """Metrics of a row without training, and whether they were there already."""
        folder = self._folder(row, None)
        identity, test = self._identity(row, None), self._test_identity(row)
        done = self._finished(folder, identity)
        if done is not None and done["test"] == test:
            return done["metrics"], True
        assert row.trivial is not None
        if self.table.is_of_pairs:
            tested = test is not None
            splits = {key: split for key, split in SPLITS.items() if split != "test" or tested}
            metrics = simple_metrics(row.trivial, self._pairs(row, self.test), splits)
        else:
            metrics = label_metrics(row.trivial, self._tables(row))
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "result.json", {"run": identity, "test": test, "metrics": metrics})
        return metrics, False

    def _tables(self, row: Row, **changes: Any) -> dict[str, Rows]:
        """The row's training and validation rows, and those of the test if there is one.

        Args:
            row: a row of the table.
            changes: data options in place of the row's.
        """
        # Vectors and memories are of no use here.
        no_use = {"retriever", "word_vectors", "memory", "memory_text_column", "memory_label_column"}
        options = {**self.table.data_options(row), **{key: str(file) for key, file in self._files(row)}}
        options = {key: value for key, value in options.items() if key.partition(".")[0] not in no_use}
        data = ClassificationDataModule(**options | {"num_memories": 0} | changes)
        data.prepare_data()
        data.setup("fit")
        names = ["train", "validation", *(["test"] if self._brings_its_test(row) else [])]
        tables = {name: data.split(name).rows for name in names}
        if self.test is not None and self.test.rows is not None and "test" not in tables:
            tables["test"] = self.test.rows
        return tables

    def _pairs(self, row: Row, test: TestFile | None) -> MatchingDataModule:
        """The row's pairs, prepared, with those of the test if there is one."""
        options = {**self.table.data_options(row), **{key: str(file) for key, file in self._files(row)}}
        if test is not None and not self._brings_its_test(row):
            options["test_file"] = str(test.file)
        data = MatchingDataModule(**options | {"word_vectors": None})
        data.prepare_data()
        data.setup("fit")
        return data

    def _run_seed(self, row: Row, seed: int) -> tuple[Metrics, bool]:
        """Metrics of a row that has a model, and whether they were there already."""
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

    def _folder(self, row: Row, seed: int | None) -> Path:
        folder = self.out / row.name
        return folder if seed is None else folder / f"seed-{seed}"

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

    def _identity(self, row: Row, seed: int | None) -> dict[str, Any]:
        """What a finished run must have been run with to be kept; where the data lies does not matter."""
        files = {name: _file_identity(file) for name, file in self._files(row) if file.is_file()}
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
        options = {**row.overrides, **{f"data.{name}": str(file) for name, file in self._files(row)}}
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
        return _best_epoch(folder / "metrics.csv", f"val/{self.table.metrics[0]}")

    def _grow(self, row: Row, seed: int, folder: Path) -> Metrics:
        assert row.grow is not None
        start = self._start(row, seed)
        tables = self._tables(row, rows_per_class=row.grow.rows_per_class)
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
        if not self._brings_its_test(row):
            assert self.test is not None
            options["data.test_file"] = str(self.test.file)
            options |= {f"data.{name}": value for name, value in self.test.columns.items()}
        else:
            # A test may have been split off the training file.
            read = ("test_file", "train_file") if self.table.is_of_pairs else ("test_file",)
            options |= {f"data.{name}": str(file) for name, file in self._files(row) if name in read}
        _zoo(["test", "--ckpt_path", str(checkpoint), *as_arguments(options)], folder.with_suffix(".log"))
        return {f"test/{name}": float(value) for name, value in json.loads(metrics.read_text()).items()}

    # --- the files ---

    def figures(self) -> Figures:
        """Mean and standard deviation (of the sample) over the runs that ended well."""
        figures: Figures = {}
        for row in self.rows:
            runs = self.results[row.name]
            names = list(dict.fromkeys(name for run in runs for name in run))
            names += [name for name in row.paper if name not in names]
            figures[row.name] = {}
            for name in names:
                values = [run[name] for run in runs if name in run]
                figures[row.name][name] = {
                    "mean": statistics.fmean(values) if values else None,
                    "sd": statistics.stdev(values) if len(values) > 1 else None,
                    "n": len(values),
                    "paper": row.paper.get(name),
                }
        return figures

    def write(self) -> None:
        """Write `table.json`, `table.csv` and `table.md`."""
        figures = self.figures()
        write_json(self.out / "table.json", figures)
        with (self.out / "table.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["row", "metric", "mean", "sd", "n", "paper"])
            for row, metrics in figures.items():
                for name, figure in metrics.items():
                    writer.writerow([row, name, *(figure[key] for key in ("mean", "sd", "n", "paper"))])
        (self.out / "table.md").write_text(self.markdown(figures), encoding="utf-8")

    def markdown(self, figures: Figures) -> str:
        """The table for people: figures in percent, the paper's beside them, what failed and why."""
        columns = {
            f"{key}/{metric}{when}": f"{split} {_title(metric)}{when and ', vote as trained'}"
            for key, split in SPLITS.items()
            for metric in self.table.metrics
            for when in ("", "_untuned")
        }
        shown = [name for name in columns if any(name in metrics for metrics in figures.values())]
        papers = list(dict.fromkeys(name for row in self.rows for name in row.paper))
        heads = ["row", *(columns[name] for name in shown), *map(self._paper_title, papers), "runs"]
        lines = [f"# {self.table.name}", "", self.table.description, ""]
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for row, metrics in figures.items():
            cells = [_percent(metrics.get(name)) for name in shown]
            published = (metrics.get(name, {}).get("paper") for name in papers)
            cells += ["" if figure is None else f"{100 * figure:.1f}" for figure in published]
            cells.append(str(len(self.results[row])))
            lines.append(f"| {' | '.join([row, *cells])} |")
        lines += ["", "Percent; mean ± standard deviation over seeds. Epochs are chosen on validation rows."]
        if any(row.grow for row in self.rows):
            lines += [
                "Where a memory has grown, the vote is refitted on validation rows: for their own figure on one"
                " half of them to label the other, for the test on all."
            ]
        lines += [f"\nSkipped: {row}: {reason}." for row, reason in self.skipped.items()]
        lines += [f"\nFailed: {run}: {reason}" for run, reason in self.failed.items()]
        return "\n".join(lines) + "\n"

    def _paper_title(self, metric: str) -> str:
        split, _, name = metric.partition("/")
        return f"paper ({SPLITS[split]}{f' {_title(name)}' if len(self.table.metrics) > 1 else ''})"

    def write_plot(self) -> None:
        """Write `table.png`: bars with the paper's figures as diamonds, or lines where the table is a curve."""
        from matplotlib.figure import Figure  # a second, that other commands need not pay

        figures = self.figures()
        first = self.table.metrics[0]
        tested = any(f"test/{first}" in metrics for metrics in figures.values())
        metric = f"test/{first}" if tested else f"val/{first}"
        names = [row for row, metrics in figures.items() if metrics.get(metric, {}).get("mean") is not None]
        mean = {row: 100 * (figures[row][metric]["mean"] or 0) for row in names}
        sd = {row: 100 * (figures[row][metric]["sd"] or 0) for row in names}
        published = self.table.paper_metric
        paper = {row.name: 100 * row.paper[published] for row in self.rows if published in row.paper}
        paper_label = self._paper_title(published)
        width = 9 if self.table.x_label is not None else max(6, 0.75 * len(self.rows))
        figure = Figure(figsize=(width, 4), layout="constrained")
        axes = figure.subplots()
        if self.table.x_label is not None:
            at = {row.name: row.x for row in self.rows if row.x is not None}
            curve_of = {
                row.name: f"{row.grow.row}, grown" if row.grow else self.table.name for row in self.rows
            }
            curves = list(dict.fromkeys(curve_of[row] for row in names if row in at))
            for curve in curves:
                line = sorted(
                    (row for row in names if row in at and curve_of[row] == curve), key=lambda row: at[row]
                )
                x, y, spread = ([values[row] for row in line] for values in (at, mean, sd))
                axes.errorbar(x, y, spread, marker="o", capsize=3, label=curve)
            # A curve shows the model that it starts from; the majority's share lies so far below that it would
            # flatten the curves.
            shown = {*at, *(row.grow.row for row in self.rows if row.grow)}
            shown |= {row.name for row in self.rows if row.trivial == "majority"}
            for i, row in enumerate(row for row in names if row not in shown):
                axes.axhline(mean[row], linestyle="--", color=f"C{i + len(curves)}", label=row)
            marked = [row for row in paper if row in at]
            places, heights = [at[row] for row in marked], [paper[row] for row in marked]
            axes.set_xlabel(self.table.x_label)
        else:
            positions = {row.name: i for i, row in enumerate(self.rows)}
            axes.bar([positions[r] for r in names], [mean[r] for r in names], yerr=[sd[r] for r in names])
            places, heights = [positions[row] for row in paper], list(paper.values())
            axes.set_xticks(range(len(self.rows)), [r.name for r in self.rows], rotation=45, ha="right")
            lowest = min([*(mean[r] for r in names if r != "majority"), *heights], default=0)
            axes.set_ylim(max(0, lowest - 5), min(100, max([*mean.values(), *heights], default=100) + 2))
        if places:
            axes.plot(places, heights, linestyle="", marker="D", color="black", label=paper_label)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside right center")
        axes.set_ylabel(f"{SPLITS[metric.partition('/')[0]]} {_title(first)}, %")
        figure.savefig(self.out / "table.png", dpi=150)


def _file_identity(file: Path) -> list[int]:
    """Size and CRC-32 of a file's contents."""
    state = file.stat()
    return [state.st_size, _crc_of(file, state.st_mtime_ns)]


@lru_cache(maxsize=64)
def _crc_of(file: Path, changed: int) -> int:
    """CRC-32 of a file; it is read again when it has changed."""
    crc = 0
    with file.open("rb") as contents:
        while block := contents.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


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


def _title(metric: str) -> str:
    """`accuracy`, but `MAP` and `NDCG@3`."""
    return metric if metric == "accuracy" else metric.upper()


def _percent(figure: Mapping[str, float | None] | None) -> str:
    if figure is None or figure["mean"] is None:
        return ""
    spread = "" if figure["sd"] is None else f" ± {100 * figure['sd']:.1f}"
    return f"{100 * figure['mean']:.1f}{spread}"


# --- the command ---


def reproduce(
    name: str,
    data_dir: str,
    test_file: str | None = None,
    rows: Sequence[str] | None = None,
    seeds: int | None = None,
    run_dir: str | None = None,
    encoder: str | None = None,
) -> Figures:
    """Run a table, or what is missing of it, and write `table.json`, `.md`, `.csv` and `.png`.

    Args:
        name: one of `shipped_tables`, or a table's YAML file.
        data_dir: the folder that holds the data.
        test_file: a table of labelled texts with the training file's columns; None = figures of the validation
            rows only. Rows whose data set comes with a test use that.
        rows: names of rows; None = all. A row that another one starts from is run with it.
        seeds: runs of each row; None = as many as the table says.
        run_dir: the table's folder; None = `runs/reproduce/NAME`. A row's runs are `ROW/seed-1`, ... in it.
        encoder: Hub name or folder of a transformer in place of the table's own.

    Returns:
        row -> metric -> mean, sd, n, paper.

    Raises:
        InputError: no such table, row or file.
        RowFailed: rows that failed, after the others are done; their reasons are in `table.md`.
    """
    if encoder is not None and Path(encoder).is_dir():
        encoder = str(Path(encoder).resolve())
    table = load_table(name, encoder)
    wanted = list(table.rows) if rows is None else list(rows)
    for row in wanted:
        if row not in table.rows:
            raise InputError(f"--rows: {table.name} has no row {row!r}; there are {', '.join(table.rows)}")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: must be 1 or more")
    out = Path(run_dir or f"runs/reproduce/{table.name}").resolve()
    reproduction = Reproduction(
        table,
        in_order(table, wanted),
        table.seeds if seeds is None else seeds,
        Path(data_dir),
        None if test_file is None else Path(test_file),
        out,
    )
    for row, reason in reproduction.skipped.items():
        print(f"{row}: skipped: {reason}")
    with _alone(out):
        reproduction.run()
    if reproduction.failed:
        raise RowFailed(f"{len(reproduction.failed)} of the runs failed: {', '.join(reproduction.failed)}")
    return reproduction.figures()


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Refuse to work in a folder in which another `zoo reproduce` is at work."""
    out.mkdir(parents=True, exist_ok=True)
    held = FileLock(out / ".lock")
    try:
        held.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{out}: another `zoo reproduce` is at work there; give another --run_dir") from None
    try:
        yield
    finally:
        held.release()


def command(options: Sequence[str]) -> None:
    """`zoo reproduce`."""
    parser = ArgumentParser(
        prog="zoo reproduce",
        exit_on_error=False,
        description="Run a paper's table: every row for every seed, beside the paper's figures. Run it again"
        " after a kill: what is done is kept.",
    )
    parser.add_argument("name", nargs="?", type=str | None, help="a table's name, or its YAML file")
    parser.add_argument("--data_dir", type=str | None, help="the folder that holds the data")
    parser.add_argument("--test_file", type=str | None, help="labelled texts; without: validation figures")
    parser.add_argument("--rows", type=str | None, help='names of rows, e.g. "M1,M7"; default: all')
    parser.add_argument("--seeds", type=int | None, help="runs of each row; default: as the table says")
    parser.add_argument("--run_dir", type=str | None, help="the table's folder; default: runs/reproduce/NAME")
    parser.add_argument(
        "--encoder", type=str | None, help="Hub name or folder of a transformer in place of the table's own"
    )
    parser.add_argument("--list", action="store_true", help="show the tables and the time they take")
    given = parser.parse_args(list(options))
    if given.list:
        for name in shipped_tables():
            table = load_table(name)
            print(f"{name:22} {_duration(table.minutes):>8}  {table.description}")
        return
    if given.name is None or given.data_dir is None:
        raise InputError(
            "zoo reproduce: give a table and --data_dir; `zoo reproduce --list` shows the tables"
        )
    rows = None if given.rows is None else [row.strip() for row in given.rows.split(",")]
    out = Path(given.run_dir or f"runs/reproduce/{Path(given.name).stem}")
    failure = None
    try:
        reproduce(given.name, given.data_dir, given.test_file, rows, given.seeds, str(out), given.encoder)
    except RowFailed as error:
        failure = error
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"table: {out / 'table.md'} (.json, .csv, .png)")
    if failure is not None:
        print(f"zoo: error: {failure}", file=sys.stderr)
        raise SystemExit(1)


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.0f} h"
