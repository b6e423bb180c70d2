"""What the callbacks write; that they change no weight is tested with the models."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from pytorch_lightning.loggers import WandbLogger

from callbacks import chart
from callbacks.csv_metrics import CSVMetrics
from callbacks.curves import read_curves
from tests.zoo.conftest import SMALL, Result, sentences
from zoo.tasks.classification.charts import charts_of
from zoo.tasks.classification.predictor import Prediction, RetrievedMemory

EXAMPLES = Path(__file__).parents[2] / "examples"


def read(file: Path) -> list[dict[str, str]]:
    with file.open() as opened:
        return list(csv.DictReader(opened))


def test_metrics_go_on_in_the_same_file(tmp_path: Path) -> None:
    first = CSVMetrics(tmp_path)
    first.log_metrics({"a": 1.0}, step=0)
    first.save()
    before = (tmp_path / "metrics.csv").read_bytes()
    second = CSVMetrics(tmp_path)
    second.log_metrics({"a": 2.0}, step=1)
    second.save()
    assert (tmp_path / "metrics.csv").read_bytes().startswith(before)
    # A metric that was not there before gets a column of its own.
    second.log_metrics({"a": 3.0, "b": 4.0}, step=2)
    second.save()
    rows = read(tmp_path / "metrics.csv")
    assert [(row["step"], row["a"], row["b"]) for row in rows] == [
        ("0", "1.0", ""),
        ("1", "2.0", ""),
        ("2", "3.0", "4.0"),
    ]


@pytest.mark.usefixtures("_wandb_offline")
def test_wandb_offline(fit: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One W&B run for a run and its resumption, with a table of predictions and their memories."""
    tables: list[dict[str, Any]] = []
    ids: list[str] = []

    def log_table(self: WandbLogger, key: str, **table: Any) -> None:
        tables.append({"key": key, **table})
        ids.append(self.experiment.id)

    monkeypatch.setattr(WandbLogger, "log_table", log_table)
    # The dashboard's fragment names the table, too: there is one.
    fragment = (
        "--config",
        EXAMPLES / "logger" / "wandb.yaml",
        "--config",
        EXAMPLES / "logger" / "dashboard.yaml",
    )
    run = fit("run", *fragment, "--trainer.max_epochs=2")
    assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert len(tables) == 2
    fit("run", *fragment, "--trainer.max_epochs=3", "--ckpt_path", run / "checkpoints" / "last.ckpt")
    assert len(tables) == 3
    assert set(ids) == {(run / "wandb_id").read_text()}

    training = dict(sentences(90, seed=1))
    for table in tables:
        assert table["key"] == "val/predictions"
        assert table["columns"] == ["text", "label", "predicted", "probability", "memories"]
        assert len(table["data"]) == 18
        for text, label, predicted, probability, memories in table["data"]:
            assert training[text] == label
            assert predicted in training.values()
            assert 1 / 3 <= probability <= 1
            for line in memories.splitlines():
                memory = line.partition("] ")[2].rpartition(" (score ")[0]
                assert f"[{training[memory]}]" in line
    # The learned weights do not depend on the logger.
    plain = fit("plain", "--trainer.max_epochs=3")
    states = [
        torch.load(r / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for r in (run, plain)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.usefixtures("_wandb_offline")
def test_a_sweeps_agent_chooses_the_run(fit: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """And it ranks its trials by W&B's summary: the figure of the best epoch."""
    monkeypatch.setenv("WANDB_RUN_ID", "trial1")
    summaries: list[dict[str, Any]] = []
    finish = wandb.Run.finish

    def look_and_finish(self: Any, *args: Any, **kwargs: Any) -> None:
        summaries.append(dict(self.summary))
        finish(self, *args, **kwargs)

    monkeypatch.setattr(wandb.Run, "finish", look_and_finish)
    run = fit("run", "--config", EXAMPLES / "logger" / "wandb.yaml", "--trainer.max_epochs=3")
    assert (run / "wandb_id").read_text() == "trial1"
    assert list(run.glob("wandb/offline-run-*-trial1"))
    best = json.loads((run / "summary.json").read_text())["best_score"]
    assert summaries[0]["val/accuracy"] == pytest.approx(best)


@pytest.mark.usefixtures("_wandb_offline")
def test_a_table_reaches_the_files_of_wandb(fit: Callable[..., Path]) -> None:
    run = fit("run", "--config", EXAMPLES / "logger" / "wandb.yaml")
    (table,) = run.glob("wandb/offline-run-*/files/media/table/val/predictions*.json")
    assert '"memories"' in table.read_text()


CHARTS = ["--trainer.callbacks+=callbacks.Charts", "--trainer.callbacks+=callbacks.GradientNorms"]


def test_the_table_of_predictions_needs_no_dashboard(fit: Callable[..., Path]) -> None:
    run = fit("run", "--trainer.callbacks+=PredictionTable", "--trainer.callbacks.num_texts=5")
    lines = read(run / "charts" / "predictions.csv")
    training = dict(sentences(90, seed=1))
    assert len(lines) == 5
    for line in lines:
        assert training[line["text"]] == line["label"]
        assert line["predicted"] in training.values()
        assert len(line["memories"].splitlines()) == 3


@pytest.mark.parametrize("name", ["Charts", "PredictionTable"])
@pytest.mark.parametrize("option", ["num_texts=0", "num_texts=-5", "every_n_epochs=0"])
def test_to_look_at_nothing_is_refused(
    zoo_command: Callable[..., Result],
    train_csv: Path,
    name: str,
    option: str,
) -> None:
    result = zoo_command(
        "fit", *SMALL, "--data.train_file", train_csv, f"--trainer.callbacks+=callbacks.{name}",
        f"--trainer.callbacks.{option}",
    )  # fmt: skip
    assert result.code == 2
    assert f"trainer.callbacks.{option.replace('=', ' ')}: must be 1 or more" in result.err
    assert result.err.count("\n") == 1


def test_tables_and_charts_are_of_the_same_epochs(fit: Callable[..., Path]) -> None:
    options = []
    for name in ("Charts", "PredictionTable"):
        options += [f"--trainer.callbacks+=callbacks.{name}", "--trainer.callbacks.every_n_epochs=2"]
    run = fit("run", *options, "--trainer.max_epochs=1")
    assert not (run / "charts").exists()
    run = fit("longer", *options, "--trainer.max_epochs=2")
    assert {"predictions.csv", "confusion.csv"} <= {file.name for file in (run / "charts").iterdir()}


def test_a_chart_that_fails_ends_no_run(
    fit: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no ink left")

    monkeypatch.setattr(chart, "_draw", fail)
    run = fit("run", "--trainer.callbacks+=callbacks.Charts")
    assert (run / "checkpoints" / "best.ckpt").exists()
    assert (run / "charts" / "confusion.csv").exists()
    assert not list((run / "charts").glob("*.png"))


def test_gradients_and_losses_are_those_of_their_step_and_of_their_epoch(fit: Callable[..., Path]) -> None:
    norms = "--trainer.callbacks+=callbacks.GradientNorms"
    rows = {
        every: read(
            fit(f"every{every}", norms, "--trainer.max_epochs=2", f"--trainer.log_every_n_steps={every}")
            / "metrics.csv"
        )
        for every in (1, 3, 50)
    }

    def by_step(every: int, name: str) -> dict[int, float]:
        return {int(row["step"]): float(row[name]) for row in rows[every] if row.get(name)}

    for name in ("train/gradient_norm", "train/loss"):
        all_steps, some_steps = by_step(1, name), by_step(3, name)
        assert list(all_steps) == list(range(10))
        assert some_steps == {step: all_steps[step] for step in (2, 5, 8)}
        assert not by_step(50, name)
        # A run that is shorter than that has its epochs' means.
        means = by_step(50, f"{name}_epoch")
        assert list(means) == [4, 9]
        assert means == by_step(1, f"{name}_epoch")
    norms_of_steps = list(by_step(1, "train/gradient_norm").values())
    means = by_step(50, "train/gradient_norm_epoch")
    assert list(means.values()) == pytest.approx([sum(norms_of_steps[:5]) / 5, sum(norms_of_steps[5:]) / 5])


def test_curves_of_the_training(fit: Callable[..., Path]) -> None:
    run = fit("run", "--config", EXAMPLES / "logger" / "dashboard.yaml", "--trainer.max_epochs=2")
    assert (run / "charts" / "training.png").read_bytes().startswith(b"\x89PNG")
    curves = read_curves(run / "metrics.csv")
    assert list(curves) == [
        "lr-Adam", "train/examples_per_second", "train/gradient_norm", "train/gradient_norm_epoch", "train/loss",
        "train/loss_epoch", "train/waiting_share",
    ]  # fmt: skip
    assert [step for step, _ in curves["train/loss_epoch"]] == [4, 9]
    assert [value for _, value in curves["lr-Adam"]] == [0.02, 0.02]


def test_charts_of_a_classifier(fit: Callable[..., Path]) -> None:
    """Each chart is a table and a picture; what is learned is the same as without."""
    plain, watched = fit("plain"), fit("watched", *CHARTS)
    folder = watched / "charts"
    names = ["attention", "attention_by_rank", "classes", "confusion", "retrieval"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("csv", "png")
    )
    for picture in folder.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    confusion = read(folder / "confusion.csv")
    summary = json.loads((watched / "summary.json").read_text())["metrics"]
    counted = [float(line[other["label"]]) for line in confusion for other in confusion]
    right = sum(float(line[line["label"]]) for line in confusion)
    assert right / sum(counted) == pytest.approx(summary["val/accuracy"])
    for line in read(folder / "classes.csv"):
        assert float(line["recall"]) == pytest.approx(summary[f"val/recall/{line['label']}"])
    shares = [
        float(line["share of the cosine similarity"]) for line in read(folder / "attention_by_rank.csv")
    ]
    assert sum(shares) == pytest.approx(1, abs=0.01)  # every text has all of its memories here
    hits = [float(line["texts with such a memory up to here"]) for line in read(folder / "retrieval.csv")]
    assert hits == sorted(hits)

    weights = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in (plain, watched)
    ]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    norms = [row["train/gradient_norm"] for row in read(watched / "metrics.csv")]
    assert any(float(norm) > 0 for norm in norms if norm)


def prediction(*labels: str | None, label: str = "a", classes: Sequence[str] = ("b", "a")) -> Prediction:
    """Of a text with memories of these labels."""
    weighted = zip(labels, (3.0, -1.0), strict=False)
    memories = [RetrievedMemory("m", one, 1.0, weight) for one, weight in weighted]
    return Prediction("t", label, 1.0, dict.fromkeys(classes, 1 / len(classes)), memories)


def test_same_label_by_rank() -> None:
    """Two texts: one with its label at the first rank, one at the second."""
    charts = {
        chart.name: chart for chart in charts_of([prediction("a", "b"), prediction("a", "b")], ["a", "b"])
    }
    assert charts["retrieval"].lines == [[1, 0.5, 0.5], [2, 0.5, 1.0]]
    assert charts["attention_by_rank"].lines == [[1, 0.75], [2, 0.25]]
    # Classes are in the order of the data, not sorted.
    assert charts["confusion"].lines == [["b", 0, 1], ["a", 0, 1]]
    assert charts["attention"].lines[0] == ["t", 3.0, -1.0]
    assert charts["attention"].marked == [[0], [1]]
    alone = list(charts_of([prediction()], ["a"]))
    assert [chart.name for chart in alone] == ["confusion", "classes"]


def test_a_memory_that_is_not_there_has_no_weight() -> None:
    charts = {
        chart.name: chart
        for chart in charts_of([prediction("a", "b"), prediction(), prediction("b")], ["a"] * 3)
    }
    assert charts["attention"].lines == [["t", 3.0, -1.0], ["t", 3.0, None]]
    assert charts["attention_by_rank"].lines == [[1, 0.875], [2, 0.25]]


def test_the_picture_has_the_largest_of_many_classes_and_the_table_all() -> None:
    names = [f"class {number}" for number in range(40)]
    labels = [name for number, name in enumerate(names) for _ in range(1 + number % 4)] + ["new"]
    predictions = [prediction(label=label, classes=names) for label in labels[:-1]]
    confusion, classes = charts_of([*predictions, prediction(label="class 1", classes=names)], labels)
    assert confusion.columns == ["label", *names, "new"]
    assert [line[0] for line in confusion.lines] == [line[0] for line in classes.lines] == [*names, "new"]
    assert confusion.shown == classes.shown
    assert confusion.shown is not None
    assert len(confusion.shown) == 30
    assert {name for number, name in enumerate(names) if number % 4} == set(confusion.shown)
    for one in (confusion, classes):
        assert one.title.endswith(", the largest 30 of 41 classes")
    assert confusion.lines[-1] == ["new", 0, 1, *[0] * 39]
