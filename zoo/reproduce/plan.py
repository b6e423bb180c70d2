"""The order of a table's runs, and the time that they take on one or several machines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heapreplace
from typing import NamedTuple

from zoo.markdown import markdown_table
from zoo.reproduce.table import Table

#: Seconds of a training step of `speed` on the reference machine: a core of an AMD EPYC (Zen 5).
STEP = 0.00145
MACHINES = (1, 2, 5, 10)


class Run(NamedTuple):
    """A row with a seed."""

    row: str
    seed: int

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"


def by_urgency(runs: Collection[Run], minutes: Mapping[Run, float], starts: Mapping[Run, Run]) -> list[Run]:
    """Sort runs, longest first; the duration of a run includes that of the longest chain that starts from it.

    Equals keep their order, in which a run comes after the one it starts from.
    """
    chains = {run: minutes[run] for run in runs}
    for run in reversed([*chains]):
        if (start := starts.get(run)) in chains:
            chains[start] = max(chains[start], minutes[start] + chains[run])
    return sorted(chains, key=chains.__getitem__, reverse=True)


@dataclass(frozen=True)
class Plan:
    """The runs of a table and their durations."""

    table: Table
    #: run -> minutes on the reference machine; a run comes after the one it starts from.
    minutes: Mapping[Run, float]
    #: run -> the run whose checkpoint it needs.
    starts: Mapping[Run, Run]
    finished: Collection[Run]
    #: run -> the machine that is at work on it.
    holders: Mapping[Run, str]
    #: rows whose minutes are those of finished runs; the others are estimates.
    measured: Collection[str]

    @property
    def unfinished(self) -> list[Run]:
        """The runs to do."""
        return by_urgency(
            [run for run in self.minutes if run not in self.finished], self.minutes, self.starts
        )

    def duration(self, machines: int) -> float:
        """Return the minutes until all runs are finished, on machines like the reference.

        As in `zoo reproduce`, a free machine begins the first of the unfinished runs whose start is finished.
        """
        free, ends, left = [0.0] * machines, dict.fromkeys(self.finished, 0.0), self.unfinished
        heapify(free)
        while left:
            ready = {run: max(free[0], self._ready(run, ends)) for run in left}
            run = min(ready, key=ready.__getitem__)
            ends[run] = ready[run] + self.minutes[run]
            heapreplace(free, ends[run])
            left.remove(run)
        return max(ends.values(), default=0.0)

    def _ready(self, run: Run, ends: Mapping[Run, float]) -> float:
        """The minute from which a run can begin."""
        start = self.starts.get(run)
        return 0.0 if start is None else ends.get(start, float("inf"))

    def markdown(self, speed: float) -> str:
        """Write the plan for machines of a speed, which is a multiple of the reference machine's."""
        return "\n".join(self._lines(speed))

    def _lines(self, speed: float) -> Iterator[str]:
        left = self.unfinished
        lines = [["row", "runs", "finished", "at work", "missing", "minutes a run", "from"]]
        for row, runs in Counter(run.row for run in self.minutes).items():
            finished, held = (sum(run.row == row for run in part) for part in (self.finished, self.holders))
            minutes = next(minutes for run, minutes in self.minutes.items() if run.row == row) / speed
            counts = map(str, (runs, finished, held, runs - finished - held))
            lines.append([row, *counts, f"{minutes:.1f}", "runs" if row in self.measured else "estimate"])
        yield markdown_table(lines)
        if self.holders:
            yield f"At work: {', '.join(f'{run} on {host}' for run, host in self.holders.items())}.\n"
        if any(run.row not in self.measured for run in left):
            yield (
                f"An estimate is an equal share of the table's {show(self.table.minutes)}, the rough duration of"
                " all rows and seeds on two cores.\n"
            )
        yield (
            f"Unfinished: {len(left)} of {len(self.minutes)} runs, {show(self.duration(1) / speed)} on this machine"
            f" ({speed:.2f} times as fast as the reference). On several machines like it:\n"
        )
        times = ([str(number), show(self.duration(number) / speed)] for number in MACHINES)
        yield markdown_table([["machines", "duration"], *times])


def show(minutes: float) -> str:
    """Return a duration as `40 min` or `2.5 h`."""
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


@cache
def speed(seconds: float = 1.0) -> float:
    """Measure the speed of a core of this machine as a multiple of the reference's, once in a process.

    Trains a small LSTM, the part that takes longest in most rows. More cores and GPUs are not measured.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        network = torch.nn.LSTM(100, 100, batch_first=True, bidirectional=True)
        texts = torch.randn(10, 10, 100)
    optimizer = torch.optim.Adam(network.parameters())
    times: list[float] = []
    started = time.perf_counter()
    while not times or time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        optimizer.zero_grad()
        network(texts)[0].square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    torch.set_num_threads(threads)
    # The fastest step is the one that other processes disturbed least.
    return STEP / min(times)
