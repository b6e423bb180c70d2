"""The stage that learns the metric of a frozen encoder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

import zoo
from tests.zoo.conftest import Result, sentences, write_table
from zoo.ensemble.metric import EncoderMetric
from zoo.saving.saved_model import SavedModel

Run = Callable[..., Path]
LABELS = ("fruit", "metal")


def layer_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the transformer's layers in the checkpoint of a run, by their own names."""
    prefix = "network.encoder.transformer."
    weights = SavedModel.open(folder).checkpoint.weights
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def accuracies(folder: Path) -> dict[str, float]:
    rows = json.loads((folder / "answer.json").read_text())["rows"]
    return {row["name"]: row["accuracy"] for row in rows}


def test_the_metric_is_learned_unless_it_is_worse(
    run: Run, tiny_bert: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = AutoModel.from_pretrained(tiny_bert).state_dict()
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=5"]
    with caplog.at_level(logging.INFO, logger="zoo"):
        gains = iter([1.0, 0.0] * 2)  # each half of the rows: tuned, as it is
        monkeypatch.setattr(EncoderMetric, "_likelihood", lambda *_: next(gains))
        tuned = layer_weights(run("tuned", *options))
        assert "the encoder's metric is learned, 5 steps" in caplog.text
        gains = iter([0.0, 1.0] * 2)
        kept = layer_weights(run("kept", *options))
        assert "classifies held-out rows better as it is" in caplog.text
    layers = [name for name in own if name.startswith("encoder.layer.")]
    assert layers
    assert all(torch.equal(kept[name], own[name]) for name in own if name in kept)
    assert not any(torch.equal(tuned[name], own[name]) for name in layers if name.endswith("dense.weight"))


def test_no_steps_leave_the_encoder_as_it_is(run: Run, tiny_bert: Path) -> None:
    own = AutoModel.from_pretrained(tiny_bert).state_dict()
    kept = layer_weights(run("run", f"--model.transformer={tiny_bert}", "--model.metric_steps=0"))
    assert all(torch.equal(value, own[name]) for name, value in kept.items())


def test_the_memory_is_encoded_by_the_tuned_encoder(
    run: Run, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = iter([1.0, 0.0] * 2)
    monkeypatch.setattr(EncoderMetric, "_likelihood", lambda *_: next(gains))
    folder = run("run", f"--model.transformer={tiny_bert}", "--model.metric_steps=5")
    predictor = zoo.load(folder)
    predictor.model.search_memory(predictor.data, predictor.memory)
    memory = predictor.model.network.memory
    texts = memory.memory.rows.texts[:10]
    np.testing.assert_allclose(predictor.encode(texts), memory.vectors[:10], atol=2e-2)


def test_random_labels_stay_random(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    """An encoder that has seen the rows would classify them nearly always right."""
    random = np.random.default_rng(0)
    rows = [(text, str(random.choice(LABELS))) for text, _ in sentences(150, seed=5)]
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=60", "--data.validation_split=0.4"]
    table = write_table(tmp_path / "noise.csv", rows)
    assert accuracies(run("run", *options, table=table))["all"] < 0.6


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.metric_steps=-1", "model.metric_steps=-1"),
        ("--model.metric_layers=0", "model.metric_layers=0"),
    ],
)
def test_refusals(
    zoo_command: Callable[..., Result], train_csv: Path, tiny_bert: Path, option: str, message: str
) -> None:
    result = zoo_command(
        "fit",
        "--model=MemoryEnsemble",
        f"--model.transformer={tiny_bert}",
        "--data=ClassificationDataModule",
        f"--data.train_file={train_csv}",
        option,
    )
    assert result.code != 0
    assert message in result.err
