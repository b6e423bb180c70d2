"""Thousands of classes: a run logs few of their scores, and the output file has all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.zoo.conftest import Result, sentences, write_table
from zoo.tasks import base


@pytest.mark.parametrize("most", [0, 300])
def test_scores_of_single_classes(
    most: int, fit: Callable[..., Path], zoo_command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_CLASS_SCORES", most)
    rows = [(text, f"class {i % 30}") for i, (text, _) in enumerate(sentences(120, seed=1))]
    table = write_table(Path("many.csv"), rows)
    run = fit("run", "--data.train_file", table)
    assert ("val/f1/class 7" in (run / "metrics.csv").read_text()) == bool(most)
    result = zoo_command("test", "--ckpt_path", run, "--data.test_file", table, "--output=scores.json")
    assert result.code == 0, result.err
    scores = json.loads(Path("scores.json").read_text())
    recalls = [scores[f"recall/class {i}"] for i in range(30)]
    assert scores["accuracy"] == pytest.approx(sum(recalls) / 30)
