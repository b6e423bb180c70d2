"""The code of the page on Python runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.conftest import sentences, write_table

PAGE = Path(__file__).parents[3] / "examples" / "python" / "README.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", sentences(60, seed=1))
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert len(names["predicted"]) == 60
    assert names["scores"].shape == (3,)
    assert Path("runs/mine/answer.md").is_file()
