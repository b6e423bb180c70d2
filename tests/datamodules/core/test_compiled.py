import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
from datamodules.core.compiled import njit
twice = njit()(lambda number: 2 * number)
print(twice(21), sum(twice.stats.cache_hits.values()))
"""
RUN = "import sys; sys.path[:0] = sys.argv[1:]; import doubled"


@pytest.mark.parametrize(
    ("home", "cache"), [("/dev/null", None), ("/dev/null", "cache"), ("relative", "cache")]
)
def test_a_read_only_package_and_home(home: str, cache: str | None, tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(SOURCE)
    (tmp_path / "__pycache__").touch()  # no folder can be made in its place, not even by root
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": home}
    environment |= {"ZOO_CACHE_DIR": str(tmp_path / cache)} if cache else {}
    for hits in (0, int(cache is not None)):
        python = [sys.executable, "-c", RUN, str(tmp_path)]
        done = subprocess.run(python, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == ["42", str(hits)], done.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"doubled.py", "__pycache__"}
