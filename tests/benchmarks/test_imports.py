"""Every benchmark script can be imported."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = {path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__", "test_imports"}


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_a_script_can_be_imported(script: str) -> None:
    assert callable(import_module(f"tests.benchmarks.{script}").main)
