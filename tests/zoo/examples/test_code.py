"""The notebook of the tour, and the code of the page on Python, run from top to bottom."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.conftest import read_json, sentences, write_table
from tests.zoo.examples import EXAMPLES, python_blocks

pytestmark = pytest.mark.slow


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tour", "demo", "your_own_data"):
        shutil.copytree(EXAMPLES / folder, tmp_path / folder, ignore=shutil.ignore_patterns("runs"))
    monkeypatch.chdir(tmp_path / "tour")
    monkeypatch.syspath_prepend("../demo")  # and away again
    cells = read_json("tour.ipynb")["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["after"] > names["before"] + 0.03


def test_the_page(tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", sentences(60, seed=1))
    blocks = python_blocks("python")
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert len(names["predicted"]) == 60
    assert names["scores"].shape == (3,)
    assert Path("runs/mine/answer.md").is_file()
