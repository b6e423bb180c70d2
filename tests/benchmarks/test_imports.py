"""Every benchmark script can be imported."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

OTHERS = {"__init__", "timing", "test_imports", "test_gpu"}


def test_every_script_can_be_imported() -> None:
    for script in {path.stem for path in Path(__file__).parent.glob("*.py")} - OTHERS:
        assert callable(import_module(f"tests.benchmarks.{script}").main)
