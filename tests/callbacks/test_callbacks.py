"""What the callbacks write; that they change no weight is tested with the models."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from pytorch_lightning.loggers import WandbLogger

from callbacks.csv_metrics import CSVMetrics
from tests.zoo.conftest import _one_thread, _own_world, fit, sentences, train_csv, zoo_command  # noqa: F401
from zoo.tasks.classification_charts import charts_of
from zoo.tasks.classification_predictor import Prediction, RetrievedMemory

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


def test_wandb_offline(
    fit: Callable[..., Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One W&B run for a run and its resumption, with a table of predictions and their memories."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tables: list[dict[str, Any]] = []
    ids: list[str] = []

    def log_table(self: WandbLogger, key: str, **table: Any) -> None:
        tables.append({"key": key, **table})
        ids.append(self.experiment.id)

    monkeypatch.setattr(WandbLogger, "log_table", log_table)
    fragment = ("--config", EXAMPLES / "logger" / "wandb.yaml")
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


def test_a_sweeps_agent_chooses_the_run(
    fit: Callable[..., Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it ranks its trials by W&B's summary: the figure of the best epoch."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
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


def test_a_table_reaches_the_files_of_wandb(
    fit: Callable[..., Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = fit("run", "--config", EXAMPLES / "logger" / "wandb.yaml")
    (table,) = run.glob("wandb/offline-run-*/files/media/table/val/predictions*.json")
    assert '"memories"' in table.read_text()


CHARTS = ["--trainer.callbacks+=callbacks.Charts", "--trainer.callbacks+=callbacks.GradientNorms"]


def test_charts_of_a_classifier(fit: Callable[..., Path]) -> None:  # noqa: F811
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
    shares = [float(line["share of the weight"]) for line in read(folder / "attention_by_rank.csv")]
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


def test_same_label_by_rank() -> None:
    """Two texts: one with its label at the first rank, one at the second."""

    def prediction(*labels: str) -> Prediction:
        weighted = zip(labels, (3.0, -1.0), strict=False)
        memories = [RetrievedMemory("m", label, 1.0, weight) for label, weight in weighted]
        return Prediction("t", "a", 1.0, {"a": 1.0}, memories)

    charts = {
        chart.name: chart for chart in charts_of([prediction("a", "b"), prediction("a", "b")], ["a", "b"])
    }
    assert charts["retrieval"].lines == [[1, 0.5, 0.5], [2, 0.5, 1.0]]
    assert charts["attention_by_rank"].lines == [[1, 0.75], [2, 0.25]]
    assert charts["confusion"].lines == [["a", 1, 0], ["b", 1, 0]]
    assert charts["attention"].lines[0] == ["t", 3.0, -1.0]
    alone = list(charts_of([prediction()], ["a"]))
    assert [chart.name for chart in alone] == ["confusion", "classes"]
