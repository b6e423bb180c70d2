"""Compiled functions where neither the package nor the home can be written."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
from datamodules.core.compiled import njit

@njit()
def twice(number):
    return 2 * number

print(twice(21), sum(twice.stats.cache_hits.values()))
"""


@pytest.mark.parametrize(("home", "cache"), [("/dev/null", None), ("/dev/null", "cache"), ("", "cache")])
def test_a_read_only_package_and_home(home: str, cache: str | None, tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(SOURCE)
    (tmp_path / "__pycache__").touch()  # no folder can be made in its place, not even by root
    python = [sys.executable, "-c", "import sys; sys.path[:0] = sys.argv[1:]; import doubled", str(tmp_path)]
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": home or "a relative path"}
    if cache is not None:
        environment["ZOO_CACHE_DIR"] = str(tmp_path / cache)
    for hits in (0, int(cache is not None)):
        done = subprocess.run(python, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == ["42", str(hits)], done.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"doubled.py", "__pycache__"}
