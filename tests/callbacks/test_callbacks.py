"""What the callbacks write; that they change no weight is tested with the models."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.loggers import WandbLogger

from callbacks.csv_metrics import CSVMetrics
from tests.zoo.conftest import _one_thread, _own_world, fit, sentences, train_csv, zoo_command  # noqa: F401

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


def test_a_table_reaches_the_files_of_wandb(
    fit: Callable[..., Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = fit("run", "--config", EXAMPLES / "logger" / "wandb.yaml")
    (table,) = run.glob("wandb/offline-run-*/files/media/table/val/predictions*.json")
    assert '"memories"' in table.read_text()
