"""The functions of the page on shards, called as Ray and Spark call them; neither is installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

import zoo
from tests.zoo.conftest import sentences

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "examples" / "sharding" / "README.md"
TEXTS = [text for text, _ in sentences(20, seed=6)]


def definitions(framework: str) -> dict[str, Any]:
    """Names that the page's code for a framework defines, without the lines that need it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if re.search(rf"^(import|from) {framework}", block, re.MULTILINE))
    tree = ast.parse(block)
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
        and not ast.unparse(node).startswith((f"import {framework}", f"from {framework}"))
    ]
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(ast.fix_missing_locations(tree), str(PAGE), "exec"), names)
    return names


@pytest.fixture(scope="session")
def expected(trained_run: Path) -> tuple[list[str | None], list[float]]:
    predictions = zoo.load(trained_run).predict(TEXTS)
    return [each.label for each in predictions], [each.probability for each in predictions]


def test_the_actor_of_ray(trained_run: Path, expected: tuple[list[str], list[float]]) -> None:
    actor = definitions("ray")["Labels"](str(trained_run))
    batch = {"text": np.array(TEXTS, object), "key": np.arange(20)}
    result = actor(batch)
    assert list(result) == ["text", "key", "label", "probability"]
    assert result["label"].tolist() == expected[0]
    np.testing.assert_allclose(result["probability"], expected[1], atol=1e-6)
    np.testing.assert_array_equal(result["key"], batch["key"])


def test_the_function_of_spark(
    trained_run: Path, expected: tuple[list[str], list[float]], tmp_path: Path
) -> None:
    """Spark pickles the function by value, with the predictor, and a worker calls it with an iterator."""
    names = definitions("pyspark")
    names["model"] = zoo.load(zoo.load(trained_run).export(tmp_path / "model"))
    labels: Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]] = names["labels"]
    (tmp_path / "function").write_bytes(cloudpickle.dumps(labels))
    assert (tmp_path / "function").stat().st_size < 10_000  # no weights
    frame = pd.DataFrame({"text": TEXTS})
    frame.to_json(tmp_path / "frame.json", orient="records")
    code = (
        "import pickle, sys, pandas as pd; labels = pickle.load(open('function', 'rb'));"
        "frame = pd.read_json('frame.json', orient='records');"
        "result = pd.concat(labels(iter([frame[:12], frame[12:]])));"
        "result.to_json('result.json', orient='records')"
    )
    # A machine on which nothing was trained.
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = pd.read_json(tmp_path / "result.json", orient="records")
    assert list(result) == ["text", "label", "probability"]
    assert result.text.tolist() == TEXTS
    assert result.label.tolist() == expected[0]
    np.testing.assert_allclose(result.probability, expected[1], atol=1e-6)
