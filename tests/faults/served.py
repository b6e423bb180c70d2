"""A server that is killed while clients add rows: every acknowledged row must be there after it starts again.

It has few descriptors, and slow clients that need more; it answers others, and logs little.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.faults.campaigns import Campaign, Random, ensemble_options, environment, zoo_command, zoo_run
from tests.zoo.conftest import sentences, write_table

#: Kills of the server in one case.
KILLS = 5
CLIENTS = 2
SLOW_CLIENTS, FILES = 400, 300


def serve(folder: Path) -> Campaign:
    """Clients add rows while the server is killed: after the next start, each acknowledged row is there, and once."""
    start = folder / "start"
    start.mkdir()
    write_table(start / "train.csv", sentences(90, seed=1))
    zoo_run(start, *ensemble_options(start))

    def case(random: Random, work: Path) -> Callable[[], Any]:
        waits = random.uniform(0.0, 3.0, KILLS).tolist()
        workers = int(random.integers(1, 3))

        def run() -> Any:
            shutil.copytree(start, work)
            return _lost_rows(work, waits, workers)

        return run

    return Campaign(case, "no row is lost", is_slow=True)


def _lost_rows(work: Path, waits: list[float], workers: int) -> str:
    acknowledged: set[str] = set()
    for attempt, wait in enumerate(waits):
        process, port = _start(work, workers)
        stop = threading.Event()
        clients = [
            threading.Thread(target=_add_rows, args=(port, f"{attempt}-{number}", acknowledged, stop))
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        time.sleep(wait)
        # The parent first: it would replace its children.
        for number in [process.pid, *_children(process.pid)]:
            _kill(number)
        process.wait()
        stop.set()
        for client in clients:
            client.join()
    process, port = _start(work, workers)
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(SLOW_CLIENTS)]
    try:
        served = json.loads(_request(port, "GET", "/version"))["rows"]
    finally:
        process.terminate()
        process.wait()
        for connection in slow:
            connection.close()
    if (lines := (work / "log").read_text().count("system resource")) > workers:
        return f"{lines} lines on {SLOW_CLIENTS} slow clients"
    memory = FolderMemory(work / "run" / "model" / "memory", EmbeddedRetriever())
    added = [text for text in memory.rows.texts if text.startswith("added ")]
    lost, twice = acknowledged - set(added), len(added) - len(set(added))
    if lost or twice or served != len(memory):
        return f"lost {sorted(lost)[:5]}, {twice} twice, {served} served of {len(memory)}"
    return "no row is lost"


def _start(work: Path, workers: int) -> tuple[subprocess.Popen[str], int]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    with (work / "log").open("w") as log:
        process = subprocess.Popen(
            zoo_command("serve", "run", "--port=0", f"--workers={workers}"), preexec_fn=limit,
            cwd=work, env=environment(work), stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline().split()[1].rpartition(":")[2])


def _add_rows(port: int, name: str, acknowledged: set[str], stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        text = f"added {name} {number}"
        number += 1
        try:
            answer = _request(port, "POST", "/memory/add", {"rows": [{"text": text, "label": "fruit"}]})
        except (OSError, http.client.HTTPException):
            continue  # the server is dead: the row may be there or not
        if json.loads(answer)["added"] == 1:
            acknowledged.add(text)


def _request(port: int, method: str, route: str, body: object = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, route, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().read()
    finally:
        connection.close()


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
