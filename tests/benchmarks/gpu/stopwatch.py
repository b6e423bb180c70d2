"""Rate, waiting, memory and kernels of the steps of a training."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, schedule

#: Steps in which the profiler starts, not counted.
PROFILER_WARM_UP = 2
#: Kernels that are listed.
MOST_KERNELS = 5


class Window(NamedTuple):
    """Numbers of steps: first some that are not counted, then those that are timed, then those that are profiled."""

    warm_up: int
    timed: int
    profiled: int

    @property
    def steps(self) -> int:
        """Steps of the whole measurement."""
        return self.warm_up + self.timed + PROFILER_WARM_UP + self.profiled


@dataclass
class Figures:
    """Result of one measurement of training steps.

    Attributes:
        rate: examples per second of all processes together, in the timed steps.
        waiting_share: share of the timed steps' time in which the process waits for a batch.
        peak_bytes: most memory of tensors on the GPU in the timed steps; None without one.
        kernel_share: share of the profiled steps' time in which a kernel runs; without a GPU, an operator.
            None where the profiler recorded nothing.
        copies_to_host: copies from the GPU to the CPU in a step: the CPU waits at each; None without a GPU.
        kernels: the kernels that take the most time, name -> share of all kernels' time.
        steps: timed and profiled steps, and those before them.
        processes: that trained together.
        score: validation score after these steps; None where none is computed.
    """

    rate: float
    waiting_share: float
    peak_bytes: int | None
    kernel_share: float | None
    copies_to_host: float | None
    kernels: dict[str, float]
    steps: int
    processes: int = 1
    score: float | None = None


class Stopwatch:
    """Follows the steps of a training: `start` when a batch is there, `stop` at the end of its step."""

    def __init__(self, window: Window, device: torch.device) -> None:
        """Wait for the first step of a training on a device."""
        self.window, self.device, self.step = window, device, 0
        self.has_gpu = device.type == "cuda"
        activity = ProfilerActivity.CUDA if self.has_gpu else ProfilerActivity.CPU
        self._profile = profile(
            activities=[activity],
            schedule=schedule(wait=0, warmup=PROFILER_WARM_UP, active=window.profiled, repeat=1),
        )
        self._is_profiling = False
        self._waited = self._seconds = self._profiled_seconds = 0.0
        self._examples = 0
        self._peak: int | None = None
        self._ready = self._began = time.perf_counter()

    def start(self) -> None:
        """Note that the batch of the next step is there."""
        self._waited += time.perf_counter() - self._ready

    def stop(self, examples: int) -> None:
        """Note the end of a step on a number of examples."""
        self.step += 1
        self._examples += examples
        window = self.window
        timed = window.warm_up + window.timed
        if self.step == window.warm_up:
            self._begin()
        elif self.step == timed:
            self._seconds = self._elapsed()
            self._examples_timed, self._waited_timed = self._examples, self._waited
            self._peak = torch.cuda.max_memory_allocated(self.device) if self.has_gpu else None
            self._profile.start()
            self._is_profiling = True
        elif timed < self.step <= window.steps:
            if self.step == window.steps:
                self._profiled_seconds = self._elapsed()
            is_first = self.step == timed + PROFILER_WARM_UP
            self._synchronize()
            self._profile.step()  # records from here on, or ends the record
            if is_first:
                self._began = time.perf_counter()
        if self.step == window.steps:
            self.abandon()
        self._ready = time.perf_counter()

    def abandon(self) -> None:
        """End the profiler, so that another can start."""
        if self._is_profiling:
            self._is_profiling = False
            self._profile.stop()

    def _begin(self) -> None:
        self._synchronize()
        if self.has_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        self._examples, self._waited, self._began = 0, 0.0, time.perf_counter()

    def _elapsed(self) -> float:
        """Seconds since the beginning of the timed or profiled steps, until the GPU has finished them."""
        self._synchronize()
        return time.perf_counter() - self._began

    def _synchronize(self) -> None:
        if self.has_gpu:
            torch.cuda.synchronize(self.device)

    def figures(self, processes: int = 1) -> Figures:
        """The result; raises a `RuntimeError` if the training has ended too early."""
        if self.step < self.window.steps:
            raise RuntimeError(f"the training ended after {self.step} of {self.window.steps} steps")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(file))
            events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        spans = [event for event in events if event.get("cat") == ("kernel" if self.has_gpu else "cpu_op")]
        copies = sum(event.get("cat") == "gpu_memcpy" and "DtoH" in event.get("name", "") for event in events)
        return Figures(
            rate=self._examples_timed * processes / self._seconds,
            waiting_share=min(1.0, self._waited_timed / self._seconds),
            peak_bytes=self._peak,
            kernel_share=min(1.0, busy_seconds(spans) / self._profiled_seconds) if spans else None,
            copies_to_host=copies / self.window.profiled if self.has_gpu else None,
            kernels=longest(spans),
            steps=self.step,
            processes=processes,
        )


def busy_seconds(spans: list[dict[str, Any]]) -> float:
    """Length of the union of a trace's events, whose `ts` and `dur` are microseconds."""
    busy = end = 0.0
    for span in sorted(spans, key=lambda span: float(span["ts"])):
        start, stop = float(span["ts"]), float(span["ts"]) + float(span["dur"])
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy * 1e-6


def longest(spans: list[dict[str, Any]]) -> dict[str, float]:
    """Names of a trace's events that take the most time, and their shares of the sum."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        seconds[span["name"]] += float(span["dur"])
    total = sum(seconds.values())
    names = sorted(seconds, key=lambda name: -seconds[name])[:MOST_KERNELS]
    return {name: seconds[name] / total for name in names if total}
