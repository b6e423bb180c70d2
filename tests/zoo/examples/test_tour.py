"""The notebook of the tour runs from top to bottom."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.examples import EXAMPLES


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tour", "demo", "your_own_data"):
        shutil.copytree(EXAMPLES / folder, tmp_path / folder, ignore=shutil.ignore_patterns("runs"))
    monkeypatch.chdir(tmp_path / "tour")
    monkeypatch.syspath_prepend("../demo")  # and away again
    cells = json.loads(Path("tour.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["after"] > names["before"] + 0.03
