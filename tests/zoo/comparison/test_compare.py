"""Runs side by side."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.zoo.conftest import Result
from zoo.comparison.page import page
from zoo.comparison.runs import Logged, Run, read_run
from zoo.comparison.table import Comparison, Mean, compared

Command = Callable[..., Result]


def write_run(
    folder: Path,
    lr: float,
    accuracy: Sequence[float],
    seed: int = 1,
    callbacks: Sequence[str] = (),
    model: str = "KNNBiLSTM",
    train_file: str = "train.csv",
    data: str = "ClassificationDataModule",
) -> Path:
    """A run whose best epoch is the one with the highest accuracy."""
    folder.mkdir(parents=True)
    optimizer = {"class_path": "torch.optim.Adam", "init_args": {"lr": lr}}
    config = {
        "seed_everything": seed,
        "trainer": {"callbacks": [{"class_path": name, "init_args": {"patience": 3}} for name in callbacks]},
        "model": {"class_path": f"zoo.{model}", "init_args": {"optimizer": optimizer}},
        "data": {"class_path": f"datamodules.{data}", "init_args": {"train_file": train_file}},
        "run_dir": str(folder),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = [f"{epoch},{epoch},{value},{1 - value},0.5,,100" for epoch, value in enumerate(accuracy)]
    lines.insert(1, "0,0,,,,12.5,")
    header = "epoch,step,val/accuracy,val/loss,val/f1/a,train/examples_per_second,val/rows"
    (folder / "metrics.csv").write_text("\n".join([header, *lines]) + "\n")
    summary = {"monitor": "val/accuracy", "epochs": len(accuracy), "seconds": 3.5, "trained_parameters": 7}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def run_of(name: str, metric: str, values: Sequence[float], **options: Any) -> Run:
    """A finished run without a folder."""
    logged = [Logged(epoch, epoch, {metric: value}) for epoch, value in enumerate(values, start=1)]
    values_of = {"settings": {}, "summary": {"epochs": 1}, "monitor": metric, "mode": None, **options}
    return Run(name=name, logged=logged, **values_of)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def names(out: str) -> list[str]:
    """The last parts of the runs' names, in the order of the table."""
    return [Path(cells(line)[0]).name for line in out.splitlines() if re.match(r"\| /", line)]


def test_settings_that_differ_and_figures_of_the_best_epoch(tmp_path: Path, zoo_command: Command) -> None:
    runs = [
        write_run(tmp_path / "slow", 0.001, [0.5, 0.7, 0.6]),
        write_run(tmp_path / "fast", 0.01, [0.6, 0.9]),
    ]
    result = zoo_command("compare", "--output", tmp_path / "out", *runs)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert cells(lines[0]) == [
        "run", "val/accuracy", "val/loss", "best epoch", "model.optimizer.lr", "epochs", "seconds", "parameters",
    ]  # fmt: skip
    assert cells(lines[2]) == [str(runs[1]), "0.9", "0.1", "2", "0.01", "2", "3.5", "7"]
    assert cells(lines[3]) == [str(runs[0]), "0.7", "0.3", "2", "0.001", "3", "3.5", "7"]
    assert (tmp_path / "out" / "compare.md").read_text().splitlines() == lines[:4]


# --- reading ---


def test_an_unfinished_run_has_its_best_epoch_and_says_so(tmp_path: Path, zoo_command: Command) -> None:
    done = write_run(tmp_path / "done", 0.001, [0.4, 0.5])
    killed = write_run(tmp_path / "killed", 0.01, [0.5, 0.7, 0.6])
    empty = write_run(tmp_path / "empty", 0.1, [])
    for run in (killed, empty):
        (run / "summary.json").unlink()
    (empty / "metrics.csv").unlink()
    header, _, *lines = zoo_command("compare", done, empty, killed).out.splitlines()
    found = [dict(zip(cells(header), cells(line), strict=True)) for line in lines]
    assert [[row[name] for name in ("status", "val/accuracy", "best epoch", "epochs")] for row in found] == [
        ["unfinished", "0.7", "2", "3"],
        ["finished", "0.5", "2", "2"],
        ["no metrics", "", "", ""],
    ]
    # What its logger was told at its start goes before what the others monitor.
    (killed / "hparams.yaml").write_text("monitor: val/f1/a\nmode: max\n")
    assert read_run(killed).monitor == "val/f1/a"


def test_learning_rates_are_of_the_epoch_that_follows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0.1, [0.5, 0.6])
    (run / "metrics.csv").write_text(
        "epoch,lr-Adam,step,val/accuracy\n,0.1,0,\n0,,9,0.5\n,0.01,10,\n1,,19,0.6\n,0.001,20,\n"
    )
    read = read_run(run)
    assert read.curve("lr-Adam") == [(1, 0.1), (2, 0.01)]
    assert read.best() == (2, {"lr-Adam": 0.01, "val/accuracy": 0.6})


def test_the_best_of_several_validations_in_an_epoch() -> None:
    logged = [
        Logged(1, 4, {"val/map": 0.7, "val/loss": 2.0}),
        Logged(1, 9, {"val/map": 0.6, "val/loss": 3.0, "train/loss": 4.0}),
    ]
    run = run_of("a", "val/map", [])
    assert Run(**{**vars(run), "logged": logged}).best() == (
        1,
        {"val/map": 0.7, "val/loss": 2.0, "train/loss": 4.0},
    )


def test_what_is_no_number_is_not_the_best() -> None:
    assert run_of("a", "val/accuracy", [0.5, math.nan, 0.4]).best() == (1, {"val/accuracy": 0.5})
    assert run_of("a", "val/loss", [0.5, math.nan, 0.4]).best() == (3, {"val/loss": 0.4})
    assert run_of("a", "val/cost", [0.5, math.inf, 0.4], mode="min").best()[0] == 3
    # Nothing monitored: the last is what the run kept.
    assert run_of("a", "val/accuracy", [0.5, 0.4], monitor=None).best() == (2, {"val/accuracy": 0.4})


def test_a_callback_is_a_setting_if_it_changes_what_is_learned(tmp_path: Path) -> None:
    stops, looks = (
        "pytorch_lightning.callbacks.EarlyStopping",
        "pytorch_lightning.callbacks.LearningRateMonitor",
    )
    settings = read_run(
        write_run(tmp_path / "a", 0.1, [0.5], callbacks=[looks, stops, "callbacks.Charts"])
    ).settings
    assert {name: value for name, value in settings.items() if name.startswith("trainer.callbacks")} == {
        "trainer.callbacks": "EarlyStopping",
        "trainer.callbacks.EarlyStopping.patience": 3,
    }
    settings = read_run(write_run(tmp_path / "b", 0.1, [0.5], callbacks=[looks])).settings
    assert settings["trainer.callbacks"] is None


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        ("config.yaml", None, "no run folder"),
        ("config.yaml", b"a: [", "config.yaml can't be read"),
        ("config.yaml", b"null\n", "config.yaml holds no mapping"),
        ("config.yaml", b"seed_everything: 1\nmodel: {}\ndata: {}\n", "config.yaml has no 'run_dir'"),
        ("summary.json", b"{", "summary.json can't be read"),
        ("summary.json", b"[]", "summary.json holds no mapping"),
        ("metrics.csv", b"epoch,step,val/loss\n0,0,0.5\n1,1,much\n", "metrics.csv, line 3 can't be read"),
        ("metrics.csv", b"epoch,step,val/loss\n0,0,0.5,7\n", "metrics.csv, line 2 can't be read"),
        ("metrics.csv", b"\xff\xfe,epoch\n", "metrics.csv can't be read"),
        ("metrics.csv", b"loss\n0.5\n", "metrics.csv can't be read"),
    ],
)
def test_a_damaged_run_is_left_out(
    file: str, contents: bytes | None, message: str, tmp_path: Path, zoo_command: Command
) -> None:
    damaged, whole = write_run(tmp_path / "damaged", 0.1, [0.5]), write_run(tmp_path / "whole", 0.1, [0.5])
    (damaged / file).unlink()
    if contents is not None:
        (damaged / file).write_bytes(contents)
    result = zoo_command("compare", damaged, whole)
    assert result.code == 0, result.err
    assert result.err.startswith(f"{damaged}: left out: {message}")
    assert len(result.err.splitlines()) == 1
    assert names(result.out) == ["whole"]
    alone = zoo_command("compare", damaged)
    assert alone.code == 2
    assert "none of the folders holds a run" in alone.err


def test_what_a_glob_finds(tmp_path: Path, zoo_command: Command) -> None:
    """Runs a level deeper, an earlier comparison and a file among them; a run named twice is one run."""
    runs = tmp_path / "runs"
    write_run(runs / "KNNBiLSTM" / "today", 0.1, [0.5])
    write_run(runs / "KNNBiLSTM" / "yesterday", 0.2, [0.6])
    (write_run(runs / "mine", 0.3, [0.7]) / "wandb" / "files").mkdir(parents=True)
    (runs / "mine" / "wandb" / "files" / "config.yaml").write_text("wandb: 1")
    assert zoo_command("compare", runs / "mine", "--output", runs / "comparison").code == 0
    (runs / "notes.txt").write_text("a file")
    result = zoo_command("compare", *sorted(runs.iterdir()), runs / "mine" / ".", runs / "gone")
    assert names(result.out) == ["mine", "yesterday", "today"]
    first, *others = result.err.splitlines()
    assert first == "files left out: 1; runs are folders"
    assert [line.split(": left out: ")[1].split(":")[0] for line in others] == [
        "no run folder",
        "no such folder",
    ]
    assert zoo_command("compare", runs).out == result.out


# --- tables ---


def test_the_best_run_comes_first_whichever_way_is_better(tmp_path: Path, zoo_command: Command) -> None:
    write_run(tmp_path / "runs" / "a", 0.1, [0.5])
    write_run(tmp_path / "runs" / "b", 0.2, [0.9])
    write_run(tmp_path / "runs" / "c", 0.3, [math.nan])
    write_run(tmp_path / "runs" / "d", 0.3, [])
    for metrics in ("val/accuracy", "val/loss,val/accuracy"):
        assert names(zoo_command("compare", tmp_path / "runs", f"--metrics={metrics}").out) == [
            "b",
            "a",
            "c",
            "d",
        ]
    # What a run says of the metric that it monitors goes before what the name says.
    runs = [run_of(str(value), "val/cost", [value], mode="min") for value in (3.0, 1.0, math.nan, 2.0)]
    assert [run.name for run in compared(runs, None)[0].runs] == ["1.0", "2.0", "3.0", "nan"]


def test_tasks_and_data_have_tables_of_their_own(tmp_path: Path, zoo_command: Command) -> None:
    write_run(tmp_path / "a", 0.1, [0.5])
    write_run(tmp_path / "b", 0.1, [0.6], train_file="other.csv")
    write_run(tmp_path / "c", 0.2, [0.7])
    write_run(tmp_path / "d", 0.1, [0.6], data="MatchingDataModule")
    result = zoo_command("compare", tmp_path, "--output", tmp_path / "out")
    assert [line for line in result.out.splitlines() if line.startswith("#")] == [
        "## Classification, train.csv", "## Classification, other.csv", "## Matching, train.csv",
    ]  # fmt: skip
    assert names(result.out) == ["c", "a", "b", "d"]
    assert "train_file" not in result.out
    assert (tmp_path / "out" / "compare.html").read_text().count("<section>") == 3


def test_counts_and_single_classes_are_shown_if_asked_for(tmp_path: Path, zoo_command: Command) -> None:
    run = write_run(tmp_path / "run", 0.1, [0.5])
    header = cells(zoo_command("compare", run).out.splitlines()[0])
    assert [name for name in header if "/" in name] == ["val/accuracy", "val/loss"]
    header = cells(zoo_command("compare", run, "--metrics=val/rows,val/f1/a").out.splitlines()[0])
    assert [name for name in header if "/" in name] == ["val/rows", "val/f1/a"]


def test_options_of_another_model_are_no_differences(tmp_path: Path) -> None:
    runs = [
        run_of("a", "val/map", [1.0], settings={"model": "HMN", "model.hops": 2, "data.cache_dir": "x"}),
        run_of("b", "val/map", [1.0], settings={"model": "MemNN", "data.cache_dir": "y"}),
    ]
    assert compared(runs, None)[0].table.header[:4] == ["run", "val/map", "best epoch", "model"]
    assert "model.hops" not in compared(runs, None)[0].table.header


def test_long_values_are_shortened(tmp_path: Path, zoo_command: Command) -> None:
    long = [f"val/{'a' * 50}.{end}" for end in "xy"]
    runs = [run_of(f"runs/{value}", "val/map", [0.5], settings={"data": value}) for value in long]
    one = compared([*runs[:1], run_of("z", "val/map", [0.4], settings={"data": long[0]})], None)[0]
    assert one.title == long[0]
    result = (
        write_run(tmp_path / ("n" * 60), 0.1, [0.5], model="M" * 60),
        write_run(tmp_path / "b", 0.1, [0.4]),
    )
    out = zoo_command("compare", *result, "--output", tmp_path / "out").out
    line = cells(out.splitlines()[2])
    assert (line[0], line[-4]) == (str(result[0]), "M" * 19 + "…" + "M" * 20)
    assert f'title="{"M" * 60}"' in (tmp_path / "out" / "compare.html").read_text()


def seeds(tmp_path: Path) -> Comparison:
    for lr, accuracies in ((0.1, [0.5, 0.7]), (0.2, [0.8, 0.9, 1.0]), (0.3, [0.95])):
        for seed, accuracy in enumerate(accuracies):
            write_run(tmp_path / f"{lr}-{seed}", lr, [0.1, accuracy], seed)
    # Done twice: no seed of its own. Killed: its figures are not yet those of the others.
    write_run(tmp_path / "0.1-0-again", 0.1, [0.1, 0.5], 0)
    (write_run(tmp_path / "killed", 0.1, [0.1], 5) / "summary.json").unlink()
    (one,) = compared([read_run(folder) for folder in sorted(tmp_path.iterdir())], ["val/accuracy"])
    return one


def test_means_over_seeds(tmp_path: Path) -> None:
    one = seeds(tmp_path)
    assert one.means is not None
    assert one.means.header == ["model.optimizer.lr", "val/accuracy", "seeds"]
    found = [line.cells for line in one.means.lines]
    assert [(row[0], row[2]) for row in found] == [(0.3, 1), (0.2, 3), (0.1, 2)]
    assert found[0][1] == Mean(0.95, None)
    assert found[1][1] == pytest.approx((0.9, 0.1))
    assert found[2][1] == pytest.approx((0.6, math.sqrt(0.02)))
    assert [[Path(run.name).name for run in line.runs] for line in one.means.lines] == [
        ["0.3-0"], ["0.2-0", "0.2-1", "0.2-2"], ["0.1-0-again", "0.1-1"],
    ]  # fmt: skip


def test_an_unknown_metric(tmp_path: Path, zoo_command: Command) -> None:
    result = zoo_command("compare", write_run(tmp_path / "run", 0.1, [0.5]), "--metrics=val/luck")
    assert result.code == 2
    assert "val/luck: no run has it; there are" in result.err
    assert zoo_command("compare").code == 2


# --- the page ---


def drawings(text: str) -> list[ElementTree.Element]:
    charts = text.partition('<div class="charts">')[2]
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", charts, re.DOTALL)]


def curves(drawing: ElementTree.Element) -> dict[str, list[tuple[float, float]]]:
    """Run -> the points of its curve on the drawing."""
    found = {}
    for group in drawing.iter("g"):
        line = group.find("polyline")
        assert line is not None
        found[group.attrib["data-name"]] = [
            (float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())
        ]
    return found


def test_the_page_draws_a_curve_a_run_and_loads_nothing(tmp_path: Path, zoo_command: Command) -> None:
    runs = [write_run(tmp_path / "a<b", 0.001, [0.5, 0.7]), write_run(tmp_path / "c", 0.01, [0.6])]
    assert zoo_command("compare", *runs, "--metrics=val/loss", "--output", tmp_path).code == 0
    text = (tmp_path / "compare.html").read_text()
    for loads in ("src=", "href=", "url(", "import", "http"):
        assert loads not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    (drawing,) = drawings(text)
    found = curves(drawing)
    assert list(found) == ["a<b", "c"]
    (left, top), (right, bottom) = found["a<b"]
    # The higher loss is higher up; a run of one epoch is a point, at the first.
    assert left < right
    assert top < bottom
    ((x, y),) = found["c"]
    assert x == left
    assert top < y < bottom
    assert [line.attrib["data-values"] for line in drawing.iter("polyline")] == ["1:0.5 2:0.3", "1:0.4"]
    assert [title.text for title in drawing.iter("title")] == ["a<b: 0.3 in epoch 2", "c: 0.4 in epoch 1"]


def test_rows_and_curves_of_a_run_are_marked_alike(tmp_path: Path) -> None:
    one = seeds(tmp_path)
    text = page([one])
    marks = re.findall(r'<tr data-runs="([\d ]+)">', text)
    assert one.means is not None
    assert marks[: len(one.means.lines)] == ["1", "3 2 0", "6 4"]
    assert marks[len(one.means.lines) :] == [str(number) for number in range(len(one.runs))]
    (drawing,) = drawings(text)
    for group in drawing.iter("g"):
        run = one.runs[int(group.attrib["data-runs"])]
        assert Path(run.name).name == group.attrib["data-name"]


def test_fifty_runs_are_drawn_in_fifty_ways() -> None:
    runs = [run_of(f"runs/{number}", "val/map", [0.1, number / 50]) for number in range(50)]
    (drawing,) = drawings(page(compared(runs, None)))
    pens = {(group.attrib["stroke"], group.get("stroke-dasharray")) for group in drawing.iter("g")}
    assert len(pens) == 50


@pytest.mark.parametrize(
    ("metric", "wild", "side"), [("val/loss", 1e6, "above"), ("val/score", -1e6, "below")]
)
def test_a_run_that_diverges_does_not_flatten_the_others(metric: str, wild: float, side: str) -> None:
    good = [[2.0, 1.0], [2.1, 0.9], [1.9, 1.1]] if side == "above" else [[1.0, 2.0], [0.9, 2.1], [1.1, 1.9]]
    runs = [run_of(f"r/{i}", metric, values) for i, values in enumerate([*good, [good[0][0], wild]])]
    text = page(compared(runs, None))
    assert f"values {side}" in text
    heights = {name: [y for _, y in points] for name, points in curves(drawings(text)[0]).items()}
    assert all(abs(heights[str(i)][0] - heights[str(i)][1]) > 80 for i in range(3))
    assert "on the edge" not in page(compared(runs[:3], None))
