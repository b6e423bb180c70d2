"""Fixtures of the tests of data modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.datamodules.kinds import PARTS, Kind, make_kind


@pytest.fixture(params=list(PARTS))
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind[Any]:
    """Each kind of data in turn."""
    return make_kind(request.param, tmp_path)
