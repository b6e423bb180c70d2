"""The first cases of each campaign show no defect; `python -m tests.faults` runs more."""

import sys

import pytest

from tests.faults.__main__ import main
from tests.faults.disks import can_mount


@pytest.mark.slow
@pytest.mark.parametrize("name", ["caches", "contents", "models", "readers"])
def test_a_few_cases(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["faults", "--only", name, "--cases", "4"])
    assert main() == 0, capfd.readouterr().err
    assert f"{name:12}      4 cases: same" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kills", "real_disks", "servers"])
def test_few_commands(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    if name == "real_disks" and not can_mount():
        pytest.skip("this machine allows no mount")
    monkeypatch.setattr(sys, "argv", ["faults", "--only", name, "--kills", "2"])
    assert main() == 0, capfd.readouterr().err
