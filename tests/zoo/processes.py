"""`zoo ...` or a function in a process of its own, without the time of its imports.

Python's fork server imports everything once, and each process is forked from it. It has no threads, as strategies that
fork need it.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zoo.cli.main import main
from zoo.registry import MODELS

#: Processes on one machine that share a run.
DDP = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp_fork"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["zoo.runs.options", *{entry.module for entry in MODELS.values()}])


def zoo_process(*arguments: object, code: int = 0) -> str:
    """Run `zoo`, which ends with a code; returns its output and its errors."""
    return "".join(printed_by(main, [*map(str, arguments)], code=code))


def printed_by(function: Callable[..., object], *arguments: object, code: int = 0) -> list[str]:
    """Run a function with this folder and this environment; returns its output and its errors."""
    with TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("out", "err")]
        process = _FORKS.Process(
            target=_run, args=(printed, os.getcwd(), {**os.environ}, function, *arguments)
        )
        process.start()
        process.join(600)
        if process.is_alive():
            process.kill()
        texts = [path.read_text() for path in printed]
    assert process.exitcode == code, texts
    return texts


def scores_of_one_and_two(checkpoint: object, *options: object) -> tuple[Any, Any]:
    """The scores of `zoo test` by one process, and by two that share the rows."""
    test = ["test", "--ckpt_path", str(checkpoint), *map(str, options)]
    assert main([*test, "--output=one.json", "--trainer.accelerator=cpu"]) == 0
    zoo_process(*test, "--output=two.json", *DDP)
    one, two = (json.loads(Path(output).read_text()) for output in ("one.json", "two.json"))
    return one, two


def _run(printed: list[Path], folder: str, environment: Any, function: Any, *arguments: object) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)  # as `python -m zoo` has it
    for stream, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.exit(function(*arguments))
