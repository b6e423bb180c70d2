"""A served model under load: time to ready, texts in batches, single texts by 1, 16 and 64 clients, memory.

    python -m tests.benchmarks.serve MODEL TABLE.csv
    python -m tests.benchmarks.serve MODEL TABLE.csv --workers 2 --seconds 20 --peer_python PYTHON

MODEL is a run folder, TABLE has the texts (column `text`). The server listens on port 8000. The clients are threads of
this process, with a connection each, and share the processors with the server; each waits for its answer before it
sends the next text. The peer is LitServe with the code of examples/serving/README.md: PYTHON is an interpreter that
has it and the packages of this project (`pip install litserve` in another virtual environment).
"""

import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from datamodules.corpora.table import read_table
from tests.benchmarks.timing import parser
from tests.zoo.examples import EXAMPLES, python_blocks

CLIENTS = (1, 16, 64)


class Client:
    """One connection."""

    def __init__(self) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)

    def predict(self, body: dict[str, object]) -> None:
        self._connection.request("POST", "/predict", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content


@contextmanager
def serving(command: list[str], folder: str, **environment: str) -> Iterator[int]:
    """A server as a process, from its first answer on."""
    given = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), **environment}
    began, quiet = time.perf_counter(), subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=given, stdout=quiet, start_new_session=True)
    try:
        while process.poll() is None:
            with suppress(ConnectionRefusedError):
                Client().predict({"text": "ready"})
                break
            time.sleep(0.1)
        ready = time.perf_counter() - began
        print(f"{command[1:]}\nready after {ready:.1f} s; load average {os.getloadavg()[0]:.1f} then")
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def family(process: int) -> list[psutil.Process]:
    """A process and its children."""
    parent = psutil.Process(process)
    return [parent, *parent.children(recursive=True)]


def cpu_seconds(process: int) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in family(process))


def load(clients: int, seconds: float, body: Callable[[random.Random], dict[str, object]]) -> list[float]:
    """Send bodies by clients in threads; return the seconds of each request."""
    taken, end = list[float](), time.perf_counter() + seconds

    def work(number: int) -> None:
        client, chance = Client(), random.Random(number)
        while (began := time.perf_counter()) < end:
            client.predict(body(chance))
            taken.append(time.perf_counter() - began)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    return taken


def single_texts(process: int, texts: list[str], seconds: float) -> None:
    """Print the figures of single texts for each number of clients."""
    for clients in CLIENTS:
        before, began = cpu_seconds(process), time.perf_counter()
        taken = load(clients, seconds, lambda chance: {"text": chance.choice(texts)})
        rate = len(taken) / (time.perf_counter() - began)
        used = 1000 * (cpu_seconds(process) - before) / len(taken)
        p50, p99 = np.percentile(taken, [50, 99]) * 1000
        times = f"{used:.1f} CPU ms each, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        print(f"single texts, {clients:2} clients: {rate:.0f}/s, {times}", flush=True)


def main() -> None:
    """Start a server, and print the figures."""
    arguments = parser(__doc__)
    arguments.add_argument("model")
    arguments.add_argument("table")
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--peer_python", help="an interpreter with LitServe; not measured without it")
    given = arguments.parse_args()
    texts = list(read_table(given.table, label_column=None).texts)
    size = min(given.batch, len(texts))
    with tempfile.TemporaryDirectory() as folder:
        # The names of the page.
        (Path(folder) / "runs").mkdir()
        (Path(folder) / "runs" / "mine").symlink_to(Path(given.model).absolute())
        command = [sys.executable, "-m", "zoo", "serve", "runs/mine", f"--workers={given.workers}"]
        with serving(command, folder) as process:
            for evidence in (True, False):
                began = time.perf_counter()
                sent = load(
                    2,
                    given.seconds,
                    lambda chance, own=evidence: {"texts": chance.sample(texts, size), "memories": own},
                )
                rate = len(sent) * size / (time.perf_counter() - began)
                print(f"batches of {size}, {'with' if evidence else 'without'} memories: {rate:.0f} texts/s")
            single_texts(process, texts, given.seconds)
            maps = [each for one in family(process) for each in one.memory_maps()]
            resident, private = np.sum([(each.rss, each.anonymous) for each in maps], axis=0) / 1e6
            print(f"memory of all processes: {resident:.0f} MB resident, {private:.0f} MB without files")
        if given.peer_python is not None:
            (code,) = python_blocks("serving")
            (Path(folder) / "server.py").write_text(code)
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            with serving([given.peer_python, "server.py"], folder, **one_thread) as process:
                single_texts(process, texts, given.seconds)


if __name__ == "__main__":
    main()
