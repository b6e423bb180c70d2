"""`zoo reproduce` with dialogues: joint sets of several files, missing tests, figures that are counts."""

import re
from pathlib import Path
from typing import Any

import pytest

import zoo.reproduce.run as runs_of_a_table
from tests.dialogues import made_up, write_published
from tests.zoo.reproduce.conftest import reproduce, write_yaml

BASE: dict[str, Any] = {
    "model": {"class_path": "HMN", "init_args": {"word_size": 6}},
    "data": {"class_path": "DialogueDataModule", "init_args": {"layout": "hmn4qa", "batch_size": 10}},
    "trainer": {"accelerator": "cpu", "max_epochs": 1},
}
ROWS: dict[str, Any] = {
    "joint set": {
        "paper": {"test/errors_joint": 4.2, "test/accuracy": 99.0},
        "overrides": {
            "data.train_file": ["a/train.txt", "b/train.txt"],
            "data.validation_file": ["a/dev.txt", "b/dev.txt"],
            "data.test_file": ["a/test.txt"],
        },
    },
    "no test": {
        "overrides": {
            "model": "MemNN",
            "data.train_file": "b/train.txt",
            "data.validation_file": "b/dev.txt",
            "data.test_file": "b/test.txt",
        }
    },
    "no data": {"overrides": {"data.train_file": ["a/train.txt", "c/train.txt"]}},
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for number, name in enumerate(("a/train", "a/dev", "a/test", "b/train", "b/dev")):
        file = tmp_path / "data" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_published(file, made_up(8, seed=number))
    return tmp_path / "data"


@pytest.mark.usefixtures("in_this_process")
def test_joint_sets_absent_tests_and_counts(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"paper_metric": "test/errors_joint", "metrics": ["questions", "errors_joint"]}
    write_yaml(ROWS, base=BASE, seeds=1, counts=["questions", "errors_joint"], skip_absent=True, **metrics)
    figures = reproduce("small.yaml", str(data_dir), run_dir="out")
    assert figures["joint set"]["val/questions"].mean == 40
    assert figures["joint set"]["test/questions"].mean == 20
    assert figures["joint set"]["test/errors_joint"].paper == 4.2
    assert "test/questions" not in figures["no test"]
    assert figures["no test"]["val/questions"].runs == 1
    text = capsys.readouterr().out
    errors = figures["joint set"]["test/errors_joint"].mean
    accuracy = figures["joint set"]["test/accuracy"].mean  # only the paper's metric
    assert f"| {errors:.1f} (4.2) | {accuracy:.1f} (99.0) | 1 |" in " ".join(text.split())
    assert re.search(r"Skipped: no data: .*c/train\.txt is missing", text)
    # A second call reads the results.
    monkeypatch.setattr(runs_of_a_table, "_zoo", lambda *_: pytest.fail("nothing was left to run"))
    assert reproduce("small.yaml", str(data_dir), run_dir="out") == figures
