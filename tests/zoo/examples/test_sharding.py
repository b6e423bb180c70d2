"""The code of the page on shards, word by word, on real Ray, Spark and Dask (`make scale` installs them)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import zoo.ray
from datamodules.core.errors import InputError
from tests.zoo.conftest import sentences, write_table
from tests.zoo.examples import framework_code

pytestmark = pytest.mark.slow
#: Quotes, line breaks, commas and letters of all kinds, which engines read in ways of their own.
STRANGE = ('"iron" and "gold"', "rain\nand\n\nsnow", "plum, fig", "Äpfel 🍎 世界", " fog ", "\\\\", "a\tb")


def engine(name: str) -> Any:
    """The package, without which the test fails where `make scale` runs it, and is skipped elsewhere."""
    if "ZOO_REQUIRE_SCALE" in os.environ:
        return __import__(name)
    return pytest.importorskip(name, reason="make scale installs it")


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    """20,000 texts with ids, in `texts.csv`."""
    texts = [text for text, _ in sentences(20_000, seed=6)]
    texts[:: len(texts) // 100] = [f"{text} {STRANGE[row % 7]}" for row, text in enumerate(texts[::200])]
    write_table(tmp_path / "texts.csv", [(str(row), text) for row, text in enumerate(texts)], ("id", "text"))
    return pd.DataFrame({"id": range(len(texts)), "text": texts})


@pytest.fixture
def model(trained_run: Path, tmp_path: Path) -> str:
    return str(zoo.load(trained_run).export(tmp_path / "model"))


def run_page(framework: str, model: str, folder: Path) -> None:
    exec(compile(framework_code(framework, model, folder), "page", "exec"), {"__name__": "page"})


def check(labels: pd.DataFrame, table: pd.DataFrame, model: str) -> None:
    labels = labels.astype({"id": int}).sort_values("id")
    expected = zoo.load(model).predict(table.text.tolist(), memories=0)
    assert labels.id.tolist() == table.id.tolist()
    assert labels.label.tolist() == [each.label for each in expected]
    np.testing.assert_allclose(labels.probability, [each.probability for each in expected], atol=1e-6)


@pytest.fixture
def ray() -> Iterator[Any]:
    package = engine("ray")
    package.init(num_cpus=3, include_dashboard=False)
    yield package
    package.shutdown()


def test_ray(ray: Any, table: pd.DataFrame, model: str, tmp_path: Path) -> None:
    run_page("ray", model, tmp_path)
    check(pd.read_parquet(tmp_path / "labels"), table, model)


def test_an_actor_of_ray_that_is_killed(ray: Any, table: pd.DataFrame, model: str) -> None:
    dataset = ray.data.from_pandas(table).repartition(40)
    labels, killed = [], 0
    for batch in zoo.ray.predict(dataset, model, keep=["id"], actors=2, batch_size=500).iter_batches(
        batch_size=500, batch_format="pandas", prefetch_batches=0
    ):
        labels.append(batch)
        if not killed:
            killed = int(subprocess.check_output(["pgrep", "-f", "^ray::MapWorker"], text=True).split()[0])
            os.kill(killed, signal.SIGKILL)
    assert killed
    check(pd.concat(labels), table, model)


def test_ray_gives_vectors_in_order(ray: Any, table: pd.DataFrame, model: str) -> None:
    dataset = ray.data.from_pandas(table[:2000]).repartition(8)
    dataset.context.execution_options.preserve_order = True
    rows = zoo.ray.encode(dataset, model, keep=["id"], actors=2).take_all()
    assert [row["id"] for row in rows] == list(range(2000))
    vectors = zoo.load(model).encode(table.text[:2000].tolist())
    np.testing.assert_allclose(np.stack([row["vector"] for row in rows]), vectors, atol=1e-6)


def test_ray_refuses_what_can_not_end(ray: Any, table: pd.DataFrame, model: str, tmp_path: Path) -> None:
    dataset = ray.data.from_pandas(table[:10])
    with pytest.raises(InputError, match=r"actors=3: one of 3 CPUs reads .* use 1 to 2"):
        zoo.ray.predict(dataset, model, actors=3)
    with pytest.raises(InputError, match="no column 'body'; it has id, text"):
        zoo.ray.predict(dataset, model, text="body")
    empty = ray.data.from_items([{"text": None, "id": 1}, {"text": "iron", "id": 2}])
    with pytest.raises(Exception, match="column 'text': None is no text"):
        zoo.ray.predict(empty, model).take_all()
    with pytest.raises(Exception, match=str(tmp_path / "absent")):
        zoo.ray.predict(dataset, str(tmp_path / "absent")).take_all()


def test_spark(table: pd.DataFrame, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_spark = engine("pyspark.sql").sql
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    session = from_spark.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.getOrCreate()
    run_page("pyspark", model, tmp_path)
    spark.stop()
    check(pd.read_parquet(tmp_path / "labels"), table, model)


def test_datasets(table: pd.DataFrame, model: str, tmp_path: Path) -> None:
    run_page("datasets", model, tmp_path)
    check(pd.read_parquet(tmp_path / "labels.parquet"), table, model)


def test_dask(table: pd.DataFrame, model: str, tmp_path: Path) -> None:
    engine("dask.dataframe")
    run_page("dask", model, tmp_path)
    check(pd.read_parquet(tmp_path / "labels"), table, model)
