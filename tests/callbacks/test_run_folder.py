"""Files of resumed runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from callbacks import RunFolder


def test_a_resumed_run_has_the_seconds_of_all_its_sessions(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, {}), RunFolder(tmp_path, {})
    first.started -= 1000
    second.load_state_dict(first.state_dict())
    second.started -= 100
    assert 1100 <= second.state_dict()["seconds"] < 1200


def test_a_resumed_run_is_unfinished(tmp_path: Path) -> None:
    trainer: Any = SimpleNamespace(is_global_zero=True)
    model: Any = None
    for _ in range(2):  # the first time there is no summary
        RunFolder(tmp_path, {}).on_train_start(trainer, model)
        assert not (tmp_path / "summary.json").exists()
        (tmp_path / "summary.json").write_text("{}")
