"""A served model under load: time to ready, memory of the process, texts in batches, single texts at half load.

    python -m tests.benchmarks.serve MODEL TABLE.csv
    python -m tests.benchmarks.serve MODEL TABLE.csv --workers 2 --seconds 20

MODEL is a run folder, TABLE has the texts (column `text`). The clients are threads of this process, with a connection
each; they share the processors with the server. The full load of single texts is what 8 clients reach that wait for
each answer; at half load, requests begin at random times at half this rate, and a duration includes the waiting.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datamodules.corpora.table import read_table

CLIENTS = 8


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def predict(self, body: dict[str, object]) -> None:
        self._connection.request("POST", "/predict", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content


def start(model: str, workers: int) -> tuple[subprocess.Popen[str], int, float]:
    """A server, its port, and the seconds until its first answer."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "zoo", "serve", model, "--port=0", f"--workers={workers}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[1].rpartition(":")[2])
    Client(port).predict({"text": "ready"})
    return process, port, time.perf_counter() - began


def kilobytes(process: int, field: str) -> int:
    """A figure of the system about a process and its children, added up."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    own = Path(f"/proc/{process}/smaps_rollup").read_text()
    value = sum(int(line.split()[1]) for line in own.splitlines() if line.startswith(f"{field}:"))
    return value + sum(kilobytes(int(child), field) for child in children)


def in_threads(work: Callable[[int], None]) -> float:
    """Run a function in each client's thread; return the seconds."""
    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def batches(port: int, texts: list[str], size: int, seconds: float, evidence: bool) -> float:
    """Texts a second, in batches, by two clients."""
    counts = [0] * CLIENTS
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        client, chance = Client(port), random.Random(number)
        while number < 2 and time.perf_counter() < end:
            client.predict({"texts": chance.sample(texts, min(size, len(texts))), "memories": evidence})
            counts[number] += min(size, len(texts))

    taken = in_threads(work)
    return sum(counts) / taken


def full_load(port: int, texts: list[str], seconds: float) -> float:
    """Single texts a second by clients that wait for each answer."""
    counts = [0] * CLIENTS
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        client, chance = Client(port), random.Random(number)
        while time.perf_counter() < end:
            client.predict({"text": chance.choice(texts)})
            counts[number] += 1

    taken = in_threads(work)
    return sum(counts) / taken


def durations(port: int, texts: list[str], rate: float, seconds: float) -> list[float]:
    """Seconds of single requests that begin at random times, `rate` of them a second."""
    gaps = np.random.default_rng(0).exponential(1 / rate, int(rate * seconds) + 1)
    planned = iter((time.perf_counter() + 0.5 + np.cumsum(gaps)).tolist())
    taken, lock = list[float](), threading.Lock()

    def work(number: int) -> None:
        client, chance = Client(port), random.Random(number)
        while True:
            with lock:
                begin = next(planned, None)
            if begin is None:
                return
            time.sleep(max(0.0, begin - time.perf_counter()))
            client.predict({"text": chance.choice(texts)})
            taken.append(time.perf_counter() - begin)

    in_threads(work)
    return taken


def main() -> None:
    """Start a server, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("table")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    texts = list(read_table(given.table, label_column=None).texts)
    process, port, ready = start(given.model, given.workers)
    try:
        print(f"ready after {ready:.1f} s; load average {os.getloadavg()[0]:.1f} before the load")
        for evidence in (True, False):
            rate = batches(port, texts, given.batch, given.seconds, evidence)
            print(
                f"batches of {given.batch}, {'with' if evidence else 'without'} memories: {rate:.0f} texts/s"
            )
        most = full_load(port, texts, given.seconds)
        print(f"single texts, {CLIENTS} clients: {most:.0f} texts/s")
        taken = np.array(durations(port, texts, most / 2, given.seconds)) * 1000
        p50, p99 = np.percentile(taken, [50, 99])
        print(f"single texts at half load ({most / 2:.0f}/s): p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        resident, private = kilobytes(process.pid, "Rss"), kilobytes(process.pid, "Anonymous")
        print(
            f"memory of all processes: {resident / 1e3:.0f} MB resident, {private / 1e3:.0f} MB without files"
        )
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
