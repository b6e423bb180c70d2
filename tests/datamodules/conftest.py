"""Fixtures of the tests of data modules."""

from pathlib import Path
from typing import Any

import pytest

from tests.datamodules.kinds import PARTS, Kind, make_kind


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE_DIR", str(tmp_path / "user_cache"))


@pytest.fixture(params=list(PARTS))
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind[Any]:
    """Each kind of data in turn."""
    return make_kind(request.param, tmp_path)
