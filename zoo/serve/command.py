"""`zoo serve`: the socket, the application in processes of uvicorn, and who may connect."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import signal
import socket
import threading
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from datamodules.core.classes import folder_of, searched
from datamodules.core.errors import InputError, check_count, check_installed, reason, visible
from datamodules.core.lightning import predict_only

if TYPE_CHECKING:
    from fastapi import FastAPI

#: Environment variable with the key that every request must send.
KEY = "ZOO_SERVE_KEY"
_LEAST_KEY = 16
#: Environment variable with the options of `zoo serve`, for its processes.
_OPTIONS = "ZOO_SERVE_OPTIONS"
#: Number of the option of glibc's `mallopt`.
_ARENA_MAX = -8


def serve(
    model: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    device: str = "cpu",
    threads: int = 1,
    pool: str | None = None,
) -> None:
    """Serve a model over HTTP: predictions with evidence, and a memory that can be searched and edited.

    The routes are described in /openapi.json. Rows that were added, removed or relabelled are on the disk when the
    answer arrives, and the next request to any process uses them. If the environment has ZOO_SERVE_KEY, requests must
    send it: `Authorization: Bearer KEY`.

    Args:
        model: a run folder, a model folder or a name on the Hub.
        host: address to listen on. Others than those of this machine alone need ZOO_SERVE_KEY.
        port: to listen on; 0 chooses a free one.
        workers: processes that answer; each loads the model, and all read one memory.
        device: cpu, cuda, cuda:1, ...
        threads: of a process's network on a CPU.
        pool: a table of texts (CSV, TSV, JSONL, Parquet, hub:NAME) that are labelled on the page; see `zoo suggest`.
    """
    for package in ("fastapi", "uvicorn"):
        check_installed(package, "serve", "zoo serve")
    check_count("workers", workers)
    check_count("threads", threads)
    _check_key(host)
    if workers > 1 and device != "cpu":
        raise InputError(f"--workers {workers}: processes on --device {device} cannot share a model; use one")
    # Set before numpy is imported: for single texts, its threads would wait for each other longer than they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))
    predict_only()
    import uvicorn

    from zoo.model_folder.folder import ModelFolder
    from zoo.registry import model_class
    from zoo.serve.pool import read_pool

    with _listen(host, port) as listening, TemporaryDirectory() as folder:
        opened = ModelFolder.open(model)
        kind, texts = model_class(opened.meta.model), Path(folder, "pool.arrow")
        if pool is not None:
            # Processes that are started later read the same rows, even if the table has changed by then.
            read_pool(pool, opened).save(texts)
        # Uvicorn gives no options to an application that it makes.
        named = [kind.__module__, folder_of(kind), pool, str(texts)]
        os.environ[_OPTIONS] = json.dumps([model, device, threads, *named])
        if workers > 1:
            # Uvicorn would start processes that cannot load the model again and again. This one keeps nothing of it.
            _load()
            gc.collect()
        address, name = listening.getsockname(), f"[{host}]" if ":" in host else host
        print(f"{visible(model)}: http://{name}:{address[1]} (routes: /openapi.json)", flush=True)
        uvicorn.run(
            f"{__name__}:{make_application.__name__}",
            factory=True,
            fd=listening.fileno(),
            workers=workers,
            http="zoo.serve.limits:_Connection",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
        )


def make_application() -> FastAPI:
    """Make the application in this process: uvicorn's factory."""
    from zoo.serve.limits import log_once_a_minute

    _end_with_parent()
    log_once_a_minute()
    app = _load()
    # What is loaded stays: the garbage collector need not search it.
    gc.collect()
    gc.freeze()
    return app


def _load() -> FastAPI:
    """Load the model in this process, which only predicts, with one prediction, and make its application."""
    model, device, threads, module, modules_in, pool, texts = json.loads(os.environ[_OPTIONS])
    predict_only()
    import torch

    from datamodules.corpora.rows import Rows
    from zoo.serve.app import make_app
    from zoo.serve.live_model import LiveModel

    torch.set_num_threads(threads)
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        # Threads share two heaps: glibc would keep one for each, as large as its largest batch.
        libc.mallopt(_ARENA_MAX, 2)
    with searched(modules_in):
        import_module(module)  # of a model of the user's own
    live = LiveModel(model, device)
    # Compiled code is loaded by the first prediction.
    list(live.current().predictor.text_records(["warm up"]))
    return make_app(live, os.environ.get(KEY), None if pool is None else Rows.load(Path(texts), pool))


def _end_with_parent() -> None:
    """Let a process of uvicorn's end when its parent is killed, which would else leave it behind."""
    if (parent := multiprocessing.parent_process()) is not None:

        def wait() -> None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, daemon=True).start()


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
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: {reason(error)}; choose others") from error
    # Uvicorn sets it for its own sockets only; without it, an answer waits until its client acknowledges the headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
