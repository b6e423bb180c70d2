"""The measurements, in the order of their importance, and how each is made."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.benchmarks.gpu import callbacks, dense
from tests.benchmarks.gpu.workloads import MADE_UP, Scale, Workload, workloads
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
    "fsdp": "bfloat16, all GPUs, each with a part of the weights",
    "compiled": "bfloat16, `torch.compile`",
    "search": "dense search",
}
_MODULE = f"{callbacks.__name__}."


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
    #: seconds that it takes in addition to the first measurement of its name.
    extra: float = 0.0
    #: the reason why it cannot be made here; "" = it can.
    obstacle: str = ""


class Machine(NamedTuple):
    """Where to measure, and where to put runs."""

    scale: Scale
    folder: Path
    has_gpu: bool

    @property
    def cache(self) -> Path:
        """Folder of prepared data."""
        return self.folder / "cache"

    @property
    def trainer(self) -> list[str]:
        """The trainer of one device, in bfloat16."""
        fragment = "gpu" if self.has_gpu else "bf16"
        return [f"--config=trainer/{fragment}", *([] if self.has_gpu else ["--trainer.accelerator=cpu"])]

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
        yield _of_metric(machine, tuned, variant)
        for workload in trained:
            yield _of_training(machine, workload, variant)
    few = f"{scale.search[0]:,} vectors of {scale.search[1]} numbers"
    device = torch.device("cuda" if machine.has_gpu else "cpu")
    yield Case(
        Result(SEARCH, "search", "queries", few),
        lambda limit: within(limit, lambda: dict(dense.measure(*scale.search, device))),
    )
    for variant in ("workers", "unpinned", "ddp", "fsdp", "compiled"):
        for workload in trained:
            if variant != "fsdp" or workload.can_be_sharded:
                yield _of_training(machine, workload, variant)


def _of_metric(machine: Machine, workload: Workload, variant: str) -> Case:
    result = Result(workload.name, variant, workload.unit, workload.data)
    options = [*workload.options, *machine.trainer, *_precision(variant), "--trainer.limit_train_batches=0"]
    return Case(result, lambda limit: _in_process(machine, result, options, "MetricStopwatchCallback", limit))


def _of_training(machine: Machine, workload: Workload, variant: str) -> Case:
    """A training with the options of a variant."""
    scale, result = machine.scale, Result(workload.name, variant, workload.unit, workload.data)
    options = [*workload.options, *machine.trainer, *_precision(variant)]
    _, compilation, processes = scale.seconds
    if variant in ("ddp", "fsdp"):
        options += _several_devices(machine, variant)
        obstacle = "one GPU; several are needed" if machine.processes < 2 else ""
        return Case(result, lambda limit: _in_processes(machine, result, options, limit), processes, obstacle)
    options += {
        "workers": [f"--data.num_workers={scale.workers}"],
        "unpinned": ["--trainer.callbacks.pin_memory=false"],
        "compiled": [f"--model.compile={scale.backend}"],
    }.get(variant, [])
    obstacle = "" if machine.has_gpu or variant != "unpinned" else "no GPU: no memory is pinned"
    return Case(
        result,
        lambda limit: _in_process(machine, result, options, "StopwatchCallback", limit, workload.score),
        compilation if variant == "compiled" else 0.0,
        obstacle,
    )


def _precision(variant: str) -> list[str]:
    return ["--trainer.precision=32-true"] if variant == "fp32" else []


def _several_devices(machine: Machine, variant: str) -> list[str]:
    number = machine.processes
    if variant == "fsdp":
        options = [f"--trainer.strategy.data_parallel_size={number}", f"--trainer.devices={number}"]
        on_cpu = ["--trainer.accelerator=cpu", "--trainer.precision=32-true"]
    else:
        options, on_cpu = (
            [],
            ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp_fork"],
        )
    return [f"--config=trainer/{variant}", *options, *([] if machine.has_gpu else on_cpu)]


def _command(
    machine: Machine, result: Result, options: list[str], callback: str, score: str
) -> tuple[list[str], Path]:
    """Options of `zoo fit`, and the folder of its run; the callback comes before its own options in `options`."""
    scale = machine.scale
    run = machine.folder / "runs" / f"{result.name} {result.variant}".replace(" ", "-")
    run.parent.mkdir(exist_ok=True)
    own = [option for option in options if option.startswith("--trainer.callbacks.")]
    validation = [
        f"--trainer.val_check_interval={scale.window.steps}",
        "--trainer.check_val_every_n_epoch=null",
    ]
    return [
        *(option for option in options if option not in own),
        f"--data.cache_dir={machine.cache}",
        f"--run_dir={run}",
        "--trainer.max_epochs=1000",
        f"--trainer.max_steps={scale.window.steps}",
        "--trainer.num_sanity_val_steps=0",
        "--trainer.enable_checkpointing=false",
        "--trainer.enable_progress_bar=false",
        *(validation if score else ["--trainer.limit_val_batches=0"]),
        f"--trainer.callbacks+={_MODULE}{callback}",
        f"--trainer.callbacks.file={run}.json",
        f"--trainer.callbacks.window={[*scale.window]}",
        *own,
    ], run  # fmt: skip


def _in_process(
    machine: Machine, result: Result, options: list[str], callback: str, limit: float, score: str = ""
) -> dict[str, Any]:
    """Figures of a run of `zoo fit` in this process, which has imported everything."""
    score = score if result.variant in ("bf16", "fp32") else ""
    command, run = _command(machine, result, options, callback, score)
    within(limit, lambda: runs.run("fit", command))
    figures: dict[str, Any] = json.loads(run.with_name(f"{run.name}.json").read_text(encoding="utf-8"))
    if score:
        with (run / "metrics.csv").open(encoding="utf-8") as file:
            scores = [float(row[f"val/{score}"]) for row in csv.DictReader(file) if row.get(f"val/{score}")]
        figures["score"] = scores[-1]
    return figures


def _in_processes(machine: Machine, result: Result, options: list[str], limit: float) -> dict[str, Any]:
    """Figures of a run of `zoo fit` that starts a process for each device."""
    command, run = _command(machine, result, options, "StopwatchCallback", "")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "zoo", "fit", *command],
        cwd=ROOT,
        env=environment,
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
        lines = [line for line in printed.splitlines() if line.strip()]
        raise RuntimeError(f"zoo fit ended with {process.returncode}: {lines[-1] if lines else 'no output'}")
    figures: dict[str, Any] = json.loads(run.with_name(f"{run.name}.json").read_text(encoding="utf-8"))
    return figures


ValueT = Any


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
