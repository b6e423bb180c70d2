"""The measurements for a GPU machine, at toy size on a CPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.benchmarks.gpu import report
from tests.benchmarks.gpu.__main__ import main
from tests.benchmarks.gpu.__main__ import measure as measure_case
from tests.benchmarks.gpu.measure import METRIC, SEARCH, Case, Result, within
from tests.benchmarks.gpu.stopwatch import Stopwatch, Window, busy_seconds, longest

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is measured at full size")
PAPERS = ["KNNBiLSTM", "ExpaNet", "HMN", "AMVLSTM", "LSTMRNN"]
TRAINED = [*PAPERS, "MemoryEnsemble", "KNNBiLSTM with MiniLM"]


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Keep what runs set, such as the seed, from other tests."""
    with patch.dict(os.environ):
        yield


def run(folder: Path, *options: str) -> tuple[dict[tuple[str, str], dict[str, Any]], str]:
    """The results by name and variant, and the report."""
    main(["--output", str(folder), "--data_dir", str(folder / "absent"), *options])
    results = json.loads((folder / "results.json").read_text())["results"]
    return {(each["name"], each["variant"]): each for each in results}, (folder / "report.md").read_text()


def check(result: dict[str, Any]) -> None:
    assert result["status"] == "measured", result["reason"]
    figures = result["figures"]
    assert 0 < figures["rate"] < float("inf")
    assert 0 < figures["kernel_share"] <= 1
    assert 0 <= figures["waiting_share"] <= 1
    assert figures["peak_bytes"] is None
    assert figures["kernels"]
    assert sum(figures["kernels"].values()) <= 1


def test_every_model_is_measured_and_what_is_skipped_is_named(tmp_path: Path) -> None:
    results, page = run(tmp_path, "--variants", "bf16", "fp32", "search", "unpinned", "--seconds", "300")
    for variant in ("bf16", "fp32"):
        for name in (METRIC, *TRAINED):
            check(results[name, variant])
            assert 0 <= results[name, variant]["figures"]["score"] <= 1
            assert results[name, variant]["data"] == "made-up data"
    cpu, other = results[SEARCH, "search"]["figures"].values()
    assert cpu["rate"] > 0
    assert cpu["gigabytes_per_second"] > 0
    assert other["agreement"] == 1
    skipped = results["ExpaNet", "unpinned"]
    assert (skipped["status"], skipped["figures"]) == ("skipped", {})
    for text in (
        *TRAINED,
        METRIC,
        "## Goals",
        "no GPU: no memory is pinned",
        "times `bf16`",
        "![speed](speed.png)",
    ):
        assert text in page
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "shares.png").exists()


@pytest.mark.slow
def test_workers_several_processes_and_the_compiler(tmp_path: Path) -> None:
    results, _ = run(tmp_path, "--seconds", "3000", "--variants", "workers", "ddp", "compiled")
    for name in TRAINED:
        for variant in ("workers", "compiled"):
            check(results[name, variant])
    assert results["HMN", "ddp"]["reason"] == "no GPU: several processes are started for one model"


def test_a_transformer_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "new"), "--transformer", str(tmp_path / "absent")])
    assert "absent: no such folder; name one, or omit the option" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_into_the_time_is_skipped(tmp_path: Path) -> None:
    results, page = run(tmp_path, "--seconds", "0", "--variants", "bf16")
    assert {each["status"] for each in results.values()} == {"skipped"}
    assert results["HMN", "bf16"]["reason"] == "takes about 10 s, and 0 s are left"
    assert "takes about 10 s, and 0 s are left" in page
    assert "nothing was measured" in page


def test_a_failure_and_a_measurement_without_end_are_recorded() -> None:
    def fail(limit: float) -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory\nmore lines")

    failed, endless = Result("A", "bf16", "texts", "data"), Result("B", "bf16", "texts", "data")
    measure_case(Case(failed, fail), 60, {}, 1)
    assert (failed.status, failed.reason) == ("failed", "OutOfMemoryError: CUDA out of memory")
    measure_case(Case(endless, lambda limit: within(limit, lambda: time.sleep(60))), 60, {"B": 0.1}, 0.1)
    assert endless.status == "failed"
    assert endless.reason.startswith("TimeoutError: stopped after")
    assert endless.seconds < 30


def test_intervals_that_overlap_count_once() -> None:
    spans = [{"name": name, "ts": ts, "dur": dur} for name, ts, dur in (("a", 5, 4), ("b", 0, 2), ("a", 6, 1), ("c", 8, 3))]  # fmt: skip # noqa: E501
    assert busy_seconds(spans) == pytest.approx(8e-6)
    assert longest(spans) == pytest.approx({"a": 0.5, "c": 0.3, "b": 0.2})
    assert busy_seconds([]) == 0


def test_steps_outside_of_the_window_do_not_count() -> None:
    stopwatch = Stopwatch(Window(warm_up=2, timed=3, profiled=2), torch.device("cpu"))
    for step in range(9):
        stopwatch.start()
        torch.ones(50, 50) @ torch.ones(50, 50)
        if step == 8:
            with pytest.raises(RuntimeError, match="8 of 9 steps"):
                stopwatch.figures()
        stopwatch.stop(examples=10)
    figures = stopwatch.figures(processes=2)
    assert figures.rate == pytest.approx(2 * 30 / stopwatch._seconds)
    assert figures.steps == 9
    assert any("mm" in name for name in figures.kernels)


def test_goals() -> None:
    def result(variant: str, rate: float, kernels: float, waiting: float) -> Result:
        figures = {"rate": rate, "kernel_share": kernels, "waiting_share": waiting}
        return Result(METRIC, variant, "texts", "data", "measured", figures=figures)

    results = [result("bf16", 32, 0.7, 0.5), result("fp32", 20, 0.1, 0.9), result("workers", 32, 0.7, 0.01)]
    assert [goal.is_reached for goal in report.goals(results, has_gpu=True)] == [True, True, True]
    assert [goal.is_reached for goal in report.goals(results, has_gpu=False)] == [None, None, None]
    results = [result("bf16", 31, 0.69, 0.5), result("fp32", 20, 0.1, 0.9)]
    assert [goal.is_reached for goal in report.goals(results, has_gpu=True)] == [False, False, False]
