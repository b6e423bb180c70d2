"""Files that the callbacks write."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from pytorch_lightning.loggers import WandbLogger

from callbacks import Charts, PredictionTable, RunFolder
from callbacks.observers import CSVMetrics
from datamodules.core.errors import InputError
from tests.zoo.conftest import Fit, Zoo, fit_options, last, python, read_csv, resume, sentences
from zoo.tasks.classification.predictor import Prediction, RetrievedMemory
from zoo.tasks.classification.task import charts_of


def test_metrics_are_appended_to_the_same_file(tmp_path: Path) -> None:
    first = CSVMetrics(tmp_path)
    first.log_metrics({"a": 1.0}, step=0)
    first.save()
    before = (tmp_path / "metrics.csv").read_bytes()
    second = CSVMetrics(tmp_path)
    second.log_metrics({"a": 2.0}, step=1)
    second.save()
    assert (tmp_path / "metrics.csv").read_bytes().startswith(before)
    # A new metric gets a column.
    second.log_metrics({"a": 3.0, "b": 4.0}, step=2)
    second.save()
    rows = read_csv(tmp_path / "metrics.csv")
    expected = [("0", "1.0", ""), ("1", "2.0", ""), ("2", "3.0", "4.0")]
    assert [(row["step"], row["a"], row["b"]) for row in rows] == expected


@pytest.mark.slow
def test_trackio(train_csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Trackio reads its folder when it is imported.
    monkeypatch.setenv("TRACKIO_DIR", str(Path("dashboard").absolute()))
    for name in ("trackio_logger.py", "trackio.yaml"):
        shutil.copy(Path(__file__).parents[2] / "examples" / "logger" / name, name)
    options = fit_options(train_csv, "--config=trackio.yaml", "--run_dir=runs/a", "--trainer.max_epochs=1")
    for arguments in (options, ["fit", f"--ckpt_path={last(Path('runs/a'))}", "--trainer.max_epochs=2"]):
        python("-m", "zoo", *arguments, "--import=trackio_logger")
    with sqlite3.connect("dashboard/memory-zoo.db") as database:
        ((name, config),) = database.execute("select run_name, config from configs").fetchall()
        logged = [json.loads(row) for (row,) in database.execute("select metrics from metrics order by id")]
    assert name == "a"
    assert json.loads(config)["config"]["model"]["class_path"] == "zoo.KNNBiLSTM"
    for column in ("val/accuracy", "train/loss_epoch"):
        values = [row[column] for row in read_csv(Path("runs/a/metrics.csv")) if row[column]]
        assert [row[column] for row in logged if column in row] == pytest.approx(list(map(float, values)))
        assert len(values) == 2


@pytest.mark.usefixtures("_wandb_offline")
def test_wandb_offline(fit: Fit, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and its resumption are one W&B run, named by a sweep, with a table of predictions and their memories.

    W&B's summary has the best epoch's figure, by which a sweep ranks its trials.
    """
    monkeypatch.setenv("WANDB_RUN_ID", "trial1")
    tables: list[dict[str, Any]] = []
    ids: list[str] = []
    summaries: list[dict[str, Any]] = []
    log, finish = WandbLogger.log_table, wandb.Run.finish

    def log_table(self: WandbLogger, key: str, **table: Any) -> None:
        tables.append({"key": key, **table})
        ids.append(self.experiment.id)
        log(self, key, **table)

    def record_and_finish(self: Any, *args: Any, **kwargs: Any) -> None:
        summaries.append(dict(self.summary))
        finish(self, *args, **kwargs)

    monkeypatch.setattr(WandbLogger, "log_table", log_table)
    monkeypatch.setattr(wandb.Run, "finish", record_and_finish)
    # The dashboard's fragment also has the table, which is logged once.
    fragment = ("--config", "logger/wandb", "--config", "logger/dashboard")
    run = fit("run", *fragment, "--trainer.max_epochs=2")
    assert len(list(run.glob("wandb/offline-run-*-trial1/*.wandb"))) == 1
    assert [table["key"] for table in tables] == 2 * ["val/predictions"]
    best = json.loads((run / "summary.json").read_text())["best_score"]
    assert summaries[0]["val/accuracy"] == pytest.approx(best)
    written, *_ = run.glob("wandb/offline-run-*/files/media/table/val/predictions*.json")
    assert '"memories"' in written.read_text()
    monkeypatch.delenv("WANDB_RUN_ID")
    resume(zoo_command, run, max_epochs=3)
    assert len(tables) == 3
    assert {*ids, (run / "wandb_id").read_text()} == {"trial1"}

    training = dict(sentences(90, seed=1))
    for table in tables:
        assert table["columns"] == ["text", "label", "predicted", "probability", "memories"]
        for text, label, predicted, probability, memories in table["data"]:
            assert training[text] == label
            assert predicted in training.values()
            assert 1 / 3 <= probability <= 1
            for line in memories.splitlines():
                memory = line.partition("] ")[2].rpartition(" (id ")[0]
                assert f"[{training[memory]}]" in line
        assert len(table["data"]) == 18
    charts = ("attention", "retrieval")
    files = {f"{name}.csv" for name in (*charts, "predictions")} | {f"{name}.png" for name in charts}
    assert {path.name for path in (run / "charts").iterdir()} == files
    for name in charts:
        assert (run / "charts" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    hits = [
        float(line["texts with such a memory up to here"]) for line in read_csv(run / "charts/retrieval.csv")
    ]
    assert hits == sorted(hits)


@pytest.mark.parametrize("kind", [Charts, PredictionTable])
@pytest.mark.parametrize("options", [{"num_texts": 0}, {"num_texts": -5}, {"every_n_epochs": 0}])
def test_reports_on_nothing_are_refused(kind: type[Charts], options: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"trainer\.callbacks\..* must be 1 or more"):
        kind(**options)


def test_tables_and_charts_are_of_the_same_epochs_and_need_no_dashboard(fit: Fit) -> None:
    options = []
    for name in ("Charts", "PredictionTable"):
        options += [f"--trainer.callbacks+={name}", "--trainer.callbacks.every_n_epochs=2"]
        options.append("--trainer.callbacks.num_texts=5")
    run = fit("run", *options, "--trainer.max_epochs=1")
    assert not (run / "charts").exists()
    run = fit("longer", *options, "--trainer.max_epochs=2")
    assert len(read_csv(run / "charts" / "attention.csv")) > 1
    lines = read_csv(run / "charts" / "predictions.csv")
    training = dict(sentences(90, seed=1))
    assert len(lines) == 5
    for line in lines:
        assert training[line["text"]] == line["label"]
        assert line["predicted"] in training.values()
        assert len(line["memories"].splitlines()) == 3


def test_gradients_and_losses_are_those_of_their_step_and_of_their_epoch(fit: Fit) -> None:
    norms = "--trainer.callbacks+=callbacks.GradientNorms"
    rows = {
        every: read_csv(
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
        # A shorter run has the means of its epochs.
        means = by_step(50, f"{name}_epoch")
        assert list(means) == [4, 9]
        assert means == by_step(1, f"{name}_epoch")
    norms_of_steps = list(by_step(1, "train/gradient_norm").values())
    means = by_step(50, "train/gradient_norm_epoch")
    assert list(means.values()) == pytest.approx([sum(norms_of_steps[:5]) / 5, sum(norms_of_steps[5:]) / 5])


def prediction(*labels: str | None) -> Prediction:
    """A prediction for a text with memories of these labels."""
    weighted = zip(labels, (3.0, -1.0), strict=False)
    memories = [RetrievedMemory("0", "m", label, 1.0, weight) for label, weight in weighted]
    return Prediction("t", "a", 1.0, {"b": 0.5, "a": 0.5}, memories)


def charts_by_name(predictions: Sequence[Prediction], labels: Sequence[str]) -> dict[str, Any]:
    return {chart.name: chart for chart in charts_of(predictions, labels)}


def test_same_label_by_rank() -> None:
    """Of two texts, one has a memory with its label at the first rank, one at the second."""
    charts = charts_by_name([prediction("a", "b"), prediction("a", "b")], ["a", "b"])
    assert charts["retrieval"].rows == [(1, 0.5, 0.5), (2, 0.5, 1.0)]
    assert charts["attention"].rows[0] == ["t", 3.0, -1.0]
    assert charts["attention"].marked == [[0], [1]]
    assert charts_by_name([prediction()], ["a"]) == {}
    # Missing memories have no weight.
    charts = charts_by_name([prediction("a", "b"), prediction(), prediction("b")], ["a"] * 3)
    assert charts["attention"].rows == [["t", 3.0, -1.0], ["t", 3.0, None]]


def test_a_resumed_run_has_seconds_and_best_of_all_its_sessions(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, {}), RunFolder(tmp_path, {})
    first.started -= 1000
    first.best = {"epoch": 2, "metrics": {"val/loss": 0.5}}
    second.load_state_dict(first.state_dict())
    second.started -= 100
    assert 1100 <= second.state_dict()["seconds"] < 1200
    assert second.best == first.best


def test_a_resumed_run_is_unfinished(tmp_path: Path) -> None:
    trainer: Any = SimpleNamespace(is_global_zero=True)
    model: Any = None
    for _ in range(2):  # the first time there is no summary
        RunFolder(tmp_path, {}).on_train_start(trainer, model)
        assert not (tmp_path / "summary.json").exists()
        (tmp_path / "summary.json").write_text("{}")
