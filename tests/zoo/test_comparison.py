"""`zoo compare`, and the folders that it reads."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.zoo.conftest import Zoo, done, read_csv, refusal
from zoo.comparison import Comparison, compared, table_of
from zoo.run_folder import Run, read_run


def write_run(
    folder: Path,
    lr: float,
    accuracy: Sequence[float],
    seed: int = 1,
    callbacks: Sequence[str] = (),
    model: str = "KNNBiLSTM",
    data: str = "ClassificationDataModule",
    **files: str,
) -> Path:
    """A run whose best epoch has the highest accuracy."""
    folder.mkdir(parents=True)
    optimizer = {"class_path": "torch.optim.Adam", "init_args": {"lr": lr}}
    config = {
        "seed_everything": seed,
        "trainer": {"callbacks": [{"class_path": name, "init_args": {"patience": 3}} for name in callbacks]},
        "model": {"class_path": f"zoo.{model}", "init_args": {"optimizer": optimizer}},
        "data": {"class_path": f"datamodules.{data}", "init_args": files or {"train_file": "train.csv"}},
        "run_dir": str(folder),
    }
    parameters = {"config": config, "monitor": "val/accuracy", "mode": "max"}
    (folder / "hparams.yaml").write_text(yaml.safe_dump(parameters))
    lines = [f"{epoch},{epoch},{value},{1 - value},0.5,,100" for epoch, value in enumerate(accuracy, 1)]
    lines.insert(1, "1,1,,,,12.5,")
    header = "epoch,step,val/accuracy,val/loss,val/f1/a,train/examples_per_second,val/rows"
    (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
    (folder / "summary.json").write_text(json.dumps({"seconds": 3.5}))
    return folder


def run_of(name: str, metric: str, values: Sequence[float], **options: Any) -> Run:
    """A finished run without a folder."""
    logged = [(epoch, {metric: value}) for epoch, value in enumerate(values, start=1)]
    fields = {"settings": {}, "logged": logged, "seconds": 1.0, "monitor": metric, "mode": None, **options}
    return Run(name=name, **fields)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def names(out: str) -> list[str]:
    """The last parts of the runs' names, in the order of the table."""
    return [Path(cells(line)[0]).name for line in out.splitlines() if re.match(r"\| /", line)]


def test_settings_that_differ_and_figures_of_the_best_epoch(tmp_path: Path, zoo_command: Zoo) -> None:
    runs = [
        write_run(tmp_path / "slow", 0.001, [0.5, 0.7, 0.6]),
        write_run(tmp_path / "fast", 0.01, [0.6, 0.9]),
    ]
    (runs[0] / "summary.json").unlink()  # killed
    result = done(zoo_command("compare", "--output", tmp_path / "out", *runs))
    lines = result.out.splitlines()
    assert cells(lines[0]) == [
        "run", "val/accuracy", "val/loss", "best epoch", "model.optimizer.lr", "seconds",
    ]  # fmt: skip
    assert cells(lines[2]) == [str(runs[1]), "0.9", "0.1", "2", "0.01", "3.5"]
    assert cells(lines[3]) == [str(runs[0]), "0.7", "0.3", "2", "0.001", "unfinished"]
    assert (tmp_path / "out" / "compare.md").read_text().splitlines() == lines[:4]


# --- reading ---


def test_learning_rates_belong_to_the_epoch_that_follows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0.1, [0.5, 0.6])
    (run / "metrics.csv").write_text(
        "epoch,lr-Adam,step,val/accuracy\n,0.1,0,\n1,,9,0.5\n,0.01,10,\n2,,19,0.6\n,0.001,20,\n"
    )
    read = read_run(run)
    assert [values["lr-Adam"] for _, values in read.logged] == [0.1, 0.01]
    assert read.best() == (2, {"lr-Adam": 0.01, "val/accuracy": 0.6})


def test_the_best_epoch() -> None:
    # Of several validations in an epoch, the best counts.
    first, second = {"val/map": 0.7, "val/loss": 2.0}, {"val/map": 0.6, "val/loss": 3.0, "train/loss": 4.0}
    run = run_of("a", "val/map", [], logged=[(1, first), (1, second)])
    assert run.best() == (1, {**first, "train/loss": 4.0})
    # Values that are not finite are not the best.
    assert run_of("a", "val/accuracy", [0.5, math.nan, 0.4]).best() == (1, {"val/accuracy": 0.5})
    assert run_of("a", "val/loss", [0.5, math.nan, 0.4]).best() == (3, {"val/loss": 0.4})
    assert run_of("a", "val/cost", [0.5, math.inf, 0.4], mode="min").best()[0] == 3
    # Without a monitored metric, the run kept its last epoch.
    assert run_of("a", "val/accuracy", [0.5, 0.4], monitor=None).best() == (2, {"val/accuracy": 0.4})


def test_a_callback_is_a_setting_if_it_changes_what_is_learned(tmp_path: Path) -> None:
    stops, watches = (
        "pytorch_lightning.callbacks.EarlyStopping",
        "pytorch_lightning.callbacks.LearningRateMonitor",
    )
    run = write_run(tmp_path / "a", 0.1, [0.5], callbacks=[watches, stops, "callbacks.Charts"])
    settings = read_run(run).settings
    assert {name: value for name, value in settings.items() if name.startswith("trainer.callbacks")} == {
        "trainer.callbacks": "EarlyStopping",
        "trainer.callbacks.EarlyStopping.patience": "3",
    }
    settings = read_run(write_run(tmp_path / "b", 0.1, [0.5], callbacks=[watches])).settings
    assert settings["trainer.callbacks"] == ""


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        ("hparams.yaml", None, "no run folder"),
        ("hparams.yaml", b"a: [", "hparams.yaml: no YAML"),
        ("hparams.yaml", b"null\n", "hparams.yaml: must be a mapping"),
        ("hparams.yaml", b"seed_everything: 1\n", "no run folder"),
        ("summary.json", b"{", "summary.json: no YAML"),
        ("summary.json", b"[]", "summary.json: must be a mapping"),
        ("metrics.csv", b"epoch,step,val/loss\n0,0,0.5\n1,1,much\n", "metrics.csv, line 3: can't be read"),
        ("metrics.csv", b"epoch,step,val/loss\n0,0,0.5,7\n", "metrics.csv, line 2: can't be read"),
        ("metrics.csv", b"epoch,step,val/loss\n0,inf,0.5\n", "metrics.csv, line 2: can't be read"),
        ("metrics.csv", b"\xff\xfe,epoch\n", "metrics.csv, line 0: can't be read"),
        ("metrics.csv", b"loss\n0.5\n", "metrics.csv, line 2: can't be read"),
        ("metrics.csv", b"epoch,step\n", "metrics.csv has no metrics"),
    ],
)
def test_a_damaged_run_is_skipped(
    file: str, contents: bytes | None, message: str, tmp_path: Path, zoo_command: Zoo
) -> None:
    damaged, whole = write_run(tmp_path / "damaged", 0.1, [0.5]), write_run(tmp_path / "whole", 0.1, [0.5])
    (damaged / file).unlink()
    if contents is not None:
        (damaged / file).write_bytes(contents)
    result = done(zoo_command("compare", damaged, whole))
    assert re.match(f"skipped {damaged}: ({damaged}/)?{message}", result.err)
    assert len(result.err.splitlines()) == 1
    assert names(result.out) == ["whole"]
    alone = zoo_command("compare", damaged)
    assert alone.code == 2
    assert "none of the folders holds a run" in alone.err


@pytest.mark.parametrize("value", [[{}], [{"class_path": 3}], {"class_path": None}, {1: 2}, b"a"])
def test_any_value_is_a_setting(value: object, tmp_path: Path, zoo_command: Zoo) -> None:
    strange, whole = write_run(tmp_path / "strange", 0.1, [0.5]), write_run(tmp_path / "whole", 0.1, [0.6])
    parameters = {"config": {"data": value}, "monitor": value, "mode": value}
    (strange / "hparams.yaml").write_text(yaml.safe_dump(parameters))
    result = done(zoo_command("compare", strange, whole, "--output", tmp_path / "out"))
    assert sorted(names(result.out)) == ["strange", "whole"]


def test_pipes_circles_and_names_that_are_no_text(tmp_path: Path, zoo_command: Zoo) -> None:
    for name in ("hparams.yaml", "metrics.csv", "summary.json"):
        (write_run(tmp_path / name, 0.1, [0.5]) / name).unlink()
        os.mkfifo(tmp_path / name / name)  # no reader of it would ever end
    (tmp_path / "circle").symlink_to("circle")
    write_run(tmp_path / "wh\udcffle", 0.1, [0.5])
    result = done(zoo_command("compare", tmp_path, tmp_path / "circle", "--output", tmp_path / "out"))
    assert names(result.out) == ["wh\\udcffle"]
    assert result.err.count("is a pipe or a device") == 3
    assert "circle: no run folder" in result.err


def test_folders_and_files_of_a_glob(tmp_path: Path, zoo_command: Zoo) -> None:
    """Nested runs, an earlier comparison and a file; a run that is named twice is one run."""
    runs = tmp_path / "runs"
    write_run(runs / "KNNBiLSTM" / "today", 0.1, [0.5])
    write_run(runs / "KNNBiLSTM" / "yesterday", 0.2, [0.6])
    (write_run(runs / "mine", 0.3, [0.7]) / "wandb" / "files").mkdir(parents=True)
    (runs / "mine" / "wandb" / "files" / "config.yaml").write_text("wandb: 1")
    done(zoo_command("compare", runs / "mine", "--output", runs / "comparison"))
    (runs / "notes.txt").write_text("a file")
    result = zoo_command("compare", *sorted(runs.iterdir()), runs / "mine" / ".", runs / "gone")
    assert names(result.out) == ["mine", "yesterday", "today"]
    skipped = [line.split(": ")[:2] for line in result.err.splitlines()]
    assert skipped == [
        [f"skipped {runs / name}", "no run folder"] for name in ("comparison", "notes.txt", "gone")
    ]
    assert zoo_command("compare", runs).out == result.out


# --- tables ---


def test_the_best_run_comes_first_whichever_way_is_better(tmp_path: Path, zoo_command: Zoo) -> None:
    write_run(tmp_path / "runs" / "a", 0.1, [0.5])
    write_run(tmp_path / "runs" / "b", 0.2, [0.9])
    write_run(tmp_path / "runs" / "c", 0.3, [math.nan])
    for metrics in ("val/accuracy", "val/loss,val/accuracy"):
        result = zoo_command("compare", tmp_path / "runs", f"--metrics={metrics}")
        assert names(result.out) == ["b", "a", "c"]
    # A run's mode for its monitored metric takes precedence over the metric's name.
    runs = [run_of(str(value), "val/cost", [value], mode="min") for value in (3.0, 1.0, math.nan, 2.0)]
    assert [run.name for run in compared(runs, None)[0].groups[0]] == ["1.0", "2.0", "3.0", "nan"]


def test_tasks_and_data_have_tables_of_their_own(tmp_path: Path, zoo_command: Zoo) -> None:
    write_run(tmp_path / "a", 0.1, [0.5])
    write_run(tmp_path / "b", 0.1, [0.6], train_file="other.csv")
    write_run(tmp_path / "c", 0.2, [0.7])
    write_run(tmp_path / "d", 0.1, [0.6], data="MatchingDataModule")
    for name, train_file in (("e", "few.csv"), ("f", "many.csv")):
        write_run(tmp_path / name, 0.1, [0.8], train_file=train_file, validation_file="dev.csv")
    result = zoo_command("compare", tmp_path, "--output", tmp_path / "out")
    assert [line for line in result.out.splitlines() if line.startswith("#")] == [
        "## Classification, train_file train.csv",
        "## Classification, validation_file dev.csv",
        "## Classification, train_file other.csv",
        "## Matching, train_file train.csv",
    ]
    assert names(result.out) == ["c", "a", "e", "f", "b", "d"]


def test_metrics_are_named(tmp_path: Path, zoo_command: Zoo) -> None:
    """Those of single classes are shown only then."""
    run = write_run(tmp_path / "run", 0.1, [0.5])
    header = cells(zoo_command("compare", run).out.splitlines()[0])
    assert [name for name in header if "/" in name] == ["val/accuracy", "val/loss", "val/rows"]
    header = cells(zoo_command("compare", run, "--metrics=val/rows,val/f1/a").out.splitlines()[0])
    assert [name for name in header if "/" in name] == ["val/rows", "val/f1/a"]
    refusal(zoo_command("compare", run, "--metrics=val/luck"), "val/luck: no run has it; there are")
    refusal(zoo_command("compare"), "name run folders")


def test_options_of_another_model_are_no_differences() -> None:
    runs = [
        run_of("a", "val/map", [1.0], settings={"model": "HMN", "model.hops": "2", "data.cache_dir": "x"}),
        run_of("b", "val/map", [1.0], settings={"model": "MemNN", "data.cache_dir": "y"}),
    ]
    header, *_ = table_of(compared(runs, None)[0])
    assert header == ["run", "val/map", "best epoch", "model", "seconds"]


def seeds(tmp_path: Path) -> Comparison:
    for lr, accuracies in ((0.1, [0.5, 0.7]), (0.2, [0.8, 0.9, 1.0]), (0.3, [0.95])):
        for seed, accuracy in enumerate(accuracies):
            write_run(tmp_path / f"{lr}-{seed}", lr, [0.1, accuracy], seed)
    # A repeated run is no further seed, and the figures of a killed one are not final.
    write_run(tmp_path / "0.1-0-again", 0.1, [0.1, 0.5], 0)
    (write_run(tmp_path / "killed", 0.1, [0.1], 5) / "summary.json").unlink()
    (comparison,) = compared([read_run(folder) for folder in sorted(tmp_path.iterdir())], ["val/accuracy"])
    return comparison


def test_means_over_seeds_precede_their_runs(tmp_path: Path) -> None:
    comparison = seeds(tmp_path)
    header, *rows = table_of(comparison)
    assert header == ["run", "val/accuracy", "best epoch", "model.optimizer.lr", "seed_everything", "seconds"]
    assert [[row[0], row[1], row[3]] for row in rows if row[0].startswith("mean")] == [
        ["mean of 3 seeds", "0.9 ± 0.1", "0.2"],
        ["mean of 2 seeds", "0.6 ± 0.14", "0.1"],
    ]
    # 0.1 with its seeds, the repeated run and the killed one.
    assert [row[3] for row in rows] == ["0.2"] * 4 + ["0.3"] + ["0.1"] * 5
    assert [len(group) for group in comparison.groups] == [3, 1, 4]


def test_the_file_has_a_row_for_each_run(tmp_path: Path, zoo_command: Zoo) -> None:
    runs = [write_run(tmp_path / f"a{seed}", 0.001, [0.5, 0.712345], seed) for seed in (1, 2)]
    runs.append(write_run(tmp_path / "c", 0.01, [0.6], data="MatchingDataModule"))
    done(zoo_command("compare", *runs, "--output", tmp_path / "out"))
    rows = read_csv(tmp_path / "out" / "compare.csv")
    assert [row["run"] for row in rows] == list(map(str, runs))
    assert [row["val/accuracy"] for row in rows] == ["0.712345", "0.712345", "0.6"]
    assert [row["best epoch"] for row in rows] == ["2", "2", "1"]
