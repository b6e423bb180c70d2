"""A model folder that tests may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.model_folder.export import export


@pytest.fixture
def exported(trained_run: Path, tmp_path: Path) -> Path:
    """The folder of a small model."""
    return export(trained_run, tmp_path / "exported")
