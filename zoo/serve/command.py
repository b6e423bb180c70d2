"""`zoo serve`: the processes, their socket, and who may connect."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError, check_count, check_installed, reason, visible
from datamodules.core.lightning import predict_only

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger("zoo")

#: Environment variable with the key that every request must send.
KEY = "ZOO_SERVE_KEY"
_LEAST_KEY = 16
#: Number of the option of glibc's `mallopt`.
_ARENA_MAX = -8


def serve(
    model: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    device: str = "cpu",
    threads: int = 1,
    max_texts: int = 1024,
    max_bytes: int = 8_000_000,
) -> None:
    """Serve a model over HTTP: predictions with evidence, and a memory that can be searched and edited.

    The routes are described on the page /docs. Rows that were added, removed or relabelled are on the disk when the
    answer arrives, and the next request to any process uses them. A memory that other runs share is copied next to the
    model at the first change. If the environment has ZOO_SERVE_KEY, requests must send it:
    `Authorization: Bearer KEY`.

    Args:
        model: a run folder, a checkpoint, an exported folder or a name on the Hub.
        host: address to listen on. Others than those of this machine alone need ZOO_SERVE_KEY.
        port: to listen on; 0 chooses a free one.
        workers: processes that answer; each loads the model, and all read one memory.
        device: cpu, cuda, cuda:1, ...
        threads: of a process's network on a CPU.
        max_texts: texts or rows of one request.
        max_bytes: bytes of one request.
    """
    for package in ("fastapi", "uvicorn"):
        check_installed(package, "serve", "zoo serve")
    for name, value in (
        ("workers", workers),
        ("threads", threads),
        ("max_texts", max_texts),
        ("max_bytes", max_bytes),
    ):
        check_count(name, value)
    _check_key(host)
    if workers > 1 and device != "cpu":
        raise InputError(f"--workers {workers}: processes on --device {device} cannot share a model; use one")
    listening = _listen(host, port)
    app = _make_app(model, device, threads, max_texts, max_bytes)
    address, opened = listening.getsockname(), f"[{host}]" if ":" in host else host
    print(f"{visible(model)}: http://{opened}:{address[1]} (routes: /docs)", flush=True)
    if workers == 1:
        _answer(app, listening)
    else:
        _run_processes(workers, lambda: _answer(app, listening, parent=os.getppid()))


def _make_app(model: str, device: str, threads: int, max_texts: int, max_bytes: int) -> FastAPI:
    """Load the model in this process, which only predicts, and make its application."""
    # Set before numpy is imported: for single texts, its threads would wait for each other longer than they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))
    predict_only()
    import torch

    from zoo.serve.app import Limits, make_app
    from zoo.serve.live_model import LiveModel

    torch.set_num_threads(threads)
    _share_heaps()
    live = LiveModel(model, device)
    live.current().records(["warm up"])  # compiled code is loaded by the first prediction
    # What is loaded stays: the garbage collector need not search it, nor write to pages that processes share.
    gc.collect()
    gc.freeze()
    return make_app(live, os.environ.get(KEY), Limits(max_texts, max_bytes))


def _share_heaps() -> None:
    """Let the threads of this process share two heaps: glibc keeps one for each, as large as its largest batch."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_ARENA_MAX, 2)


def _answer(app: FastAPI, listening: socket.socket, parent: int | None = None) -> None:
    """Answer requests until a signal ends the process, or its parent ends."""
    import uvicorn

    async def check_parent() -> None:
        if parent is not None and os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        callback_notify=check_parent,
        timeout_notify=1,
    )
    uvicorn.Server(config).run([listening])


def _run_processes(number: int, work: Callable[[], None]) -> None:
    """Fork processes that work, and another one for each that ends, until this process ends."""
    children: set[int] = set()
    try:
        while True:
            while len(children) < number:
                children.add(_fork(work))
            ended, status = os.wait()
            children.remove(ended)
            log.warning("a process of the server has ended (%s); another one starts", _describe(status))
            time.sleep(0.1)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except (SystemExit, KeyboardInterrupt):
            code = 0  # by a signal
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def _describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _check_key(host: str) -> None:
    """Refuse a short key, and an address that others can reach without a key."""
    key = os.environ.get(KEY)
    if key is not None and len(key) < _LEAST_KEY:
        raise InputError(f"{KEY}: has fewer than {_LEAST_KEY} characters; set a longer one, or unset it")
    if key is None and not _is_loopback(host):
        raise InputError(
            f"--host {host}: other machines could read and change the memory; set {KEY} to a key of {_LEAST_KEY} or"
            " more characters, or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: {reason(error)}; choose others") from error
