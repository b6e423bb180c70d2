"""Thousands of classes: a run logs few of their scores, and the output file has all."""

from pathlib import Path

import pytest

from tests.zoo.conftest import Fit, Measure, sentences, write_table
from zoo.tasks import base


def test_scores_of_single_classes(fit: Fit, measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_CLASS_SCORES", 0)
    rows = [(text, f"class {i % 30}") for i, (text, _) in enumerate(sentences(120, seed=1))]
    table = write_table(Path("many.csv"), rows)
    run = fit("run", "--data.train_file", table)
    assert "val/f1/class 7" not in (run / "metrics.csv").read_text()
    scores = measure(run, rows)
    assert scores["accuracy"] == pytest.approx(sum(scores[f"recall/class {i}"] for i in range(30)) / 30)
