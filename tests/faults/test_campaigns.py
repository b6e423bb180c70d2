"""The first cases of each campaign show no defect; `python -m tests.faults` runs more."""

from __future__ import annotations

import sys

import pytest

from tests.faults.__main__ import main


@pytest.mark.slow
@pytest.mark.parametrize("name", ["caches", "full_disks", "memories", "readers"])
def test_a_few_cases(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["faults", "--only", name, "--cases", "4"])
    assert main() == 0, capfd.readouterr().err
    assert f"{name:12}      4 cases: same" in capfd.readouterr().out
