"""The measurements, in the order of their importance, and how each is made."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from tests.benchmarks.gpu import callbacks, dense
from tests.benchmarks.gpu.workloads import Scale, Workload, workloads
from zoo.cli import runs

ROOT = Path(__file__).parents[3]
#: The stage of `MemoryEnsemble` that tunes MiniLM.
METRIC = "contrastive stage with MiniLM"
SEARCH = "dense search"
#: Variant -> its description. `bf16` is what `--config trainer/gpu` trains with.
VARIANTS = {
    "bf16": "bfloat16, one GPU",
    "fp32": "float32",
    "workers": "bfloat16, batches made by other processes",
    "unpinned": "bfloat16, batches in memory that is not pinned",
    "ddp": "bfloat16, all GPUs, each with all weights",
    "compiled": "bfloat16, `torch.compile`",
    "search": "dense search",
}

ValueT = TypeVar("ValueT")


@dataclass
class Result:
    """Outcome of a measurement; `figures` are a `Figures` as plain values, or those of `dense.measure`."""

    name: str
    variant: str
    unit: str
    data: str
    #: `measured`, `failed` or `skipped`.
    status: str = "skipped"
    reason: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


class Case(NamedTuple):
    """A measurement to be made."""

    result: Result
    #: measures within a number of seconds, and returns the figures.
    run: Callable[[float], dict[str, Any]]
    #: seconds that it takes in addition to an ordinary measurement of its name.
    extra: float = 0.0
    #: the reason why it cannot be made here; "" = it can.
    obstacle: str = ""


class Machine(NamedTuple):
    """Where to measure, and where to put runs."""

    scale: Scale
    folder: Path
    has_gpu: bool

    @property
    def trainer(self) -> list[str]:
        """The trainer of one device, in bfloat16."""
        return (
            ["--config=trainer/gpu"]
            if self.has_gpu
            else ["--config=trainer/bf16", "--trainer.accelerator=cpu"]
        )

    @property
    def processes(self) -> int:
        """Processes of a training on several devices: one for each GPU."""
        return torch.cuda.device_count() if self.has_gpu else 2


def cases(machine: Machine, data: Path, transformer: str) -> Iterator[Case]:
    """Yield all measurements, the most important ones first."""
    scale = machine.scale
    trained = list(workloads(machine.folder, data, transformer, scale))
    encoder = f"--model.transformer={transformer}"
    tuned = trained[-1]._replace(name=METRIC, options=(*trained[-1].options, encoder))
    for variant in ("bf16", "fp32"):
        for workload in (tuned, *trained):
            yield _in_process(machine, workload, variant)
    vectors = f"{scale.search[0]:,} vectors of {scale.search[1]} numbers"
    device = torch.device("cuda" if machine.has_gpu else "cpu")
    yield Case(
        Result(SEARCH, "search", "queries", vectors),
        lambda limit: within(limit, lambda: dict(dense.measure(*scale.search, device))),
    )
    for variant in ("workers", "unpinned", "ddp", "compiled"):
        for workload in trained:
            if variant == "ddp":
                yield _in_processes(machine, workload, variant)
            else:
                yield _in_process(machine, workload, variant)


def _in_process(machine: Machine, workload: Workload, variant: str) -> Case:
    """A run of `zoo fit` in this process, which has imported everything."""
    scale, result = machine.scale, Result(workload.name, variant, workload.unit, workload.data)
    options = {
        "fp32": ["--trainer.precision=32-true"],
        "workers": [f"--data.num_workers={scale.workers}"],
        "compiled": [f"--model.compile={scale.backend}"],
    }.get(variant, [])
    callback, has_score = "StopwatchCallback", variant in ("bf16", "fp32")
    if workload.name == METRIC:
        # The stage is measured before the training, and computes its own score.
        callback, has_score = "MetricStopwatchCallback", False
        options.append("--trainer.limit_train_batches=0")
    command, run = _command(machine, workload, variant, options, callback, has_score)

    def measure(limit: float) -> dict[str, Any]:
        within(limit, lambda: runs.run("fit", command))
        figures = _read(run)
        if has_score:
            with (run / "metrics.csv").open(encoding="utf-8") as file:
                scores = [row.get(f"val/{workload.score}") for row in csv.DictReader(file)]
            figures["score"] = float([score for score in scores if score][-1])
        return figures

    obstacle = "" if machine.has_gpu or variant != "unpinned" else "no GPU: no memory is pinned"
    return Case(result, measure, scale.seconds[1] if variant == "compiled" else 0.0, obstacle)


def _in_processes(machine: Machine, workload: Workload, variant: str) -> Case:
    """A run of `zoo fit` that starts a process for each device."""
    number, options = machine.processes, [f"--config=trainer/{variant}"]
    if not machine.has_gpu:
        options += ["--trainer.accelerator=cpu", f"--trainer.devices={number}"]
        options += ["--trainer.strategy=ddp_fork"]
    command, run = _command(machine, workload, variant, options, "StopwatchCallback", has_score=False)

    def measure(limit: float) -> dict[str, Any]:
        _zoo_fit(command, limit)
        return _read(run)

    result = Result(workload.name, variant, workload.unit, workload.data)
    obstacle = "one GPU; several are needed" if number < 2 else ""
    if not machine.has_gpu:
        obstacle = "no GPU: several processes are started for one model"
    return Case(result, measure, machine.scale.seconds[2], obstacle)


def _command(
    machine: Machine, workload: Workload, variant: str, options: list[str], callback: str, has_score: bool
) -> tuple[list[str], Path]:
    """Options of `zoo fit`, and the folder of its run, next to which the callback writes the figures."""
    window = machine.scale.window
    run = machine.folder / "runs" / f"{workload.name} {variant}".replace(" ", "-")
    at_the_end = [f"--trainer.val_check_interval={window.steps}", "--trainer.check_val_every_n_epoch=null"]
    command = [
        *workload.options,
        *machine.trainer,
        *options,
        f"--data.cache_dir={machine.folder / 'cache'}",
        f"--run_dir={run}",
        "--trainer.max_epochs=1000",
        f"--trainer.max_steps={window.steps}",
        "--trainer.num_sanity_val_steps=0",
        "--trainer.enable_checkpointing=false",
        "--trainer.enable_progress_bar=false",
        *(at_the_end if has_score else ["--trainer.limit_val_batches=0"]),
        f"--trainer.callbacks+={callbacks.__name__}.{callback}",
        f"--trainer.callbacks.file={run}.json",
        f"--trainer.callbacks.window={[*window]}",
        *(["--trainer.callbacks.pin_memory=false"] if variant == "unpinned" else []),
    ]
    return command, run


def _read(run: Path) -> dict[str, Any]:
    """The figures of a run; those of an earlier run are not left behind."""
    file = run.with_name(f"{run.name}.json")
    figures: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    return figures


def _zoo_fit(command: list[str], limit: float) -> None:
    """Run `zoo fit` in processes of its own, which end after a number of seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zoo", "fit", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except BaseException as error:  # too long, or interrupted: no process is left behind
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"stopped after {limit:.0f} s") from None
        raise
    if process.returncode:
        line = next((line for line in reversed(printed.splitlines()) if line.strip()), "no output")
        raise RuntimeError(f"zoo fit ended with {process.returncode}: {line}")


def within(seconds: float, function: Callable[[], ValueT]) -> ValueT:
    """Call a function, and raise a `TimeoutError` in it after a number of seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        return function()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
