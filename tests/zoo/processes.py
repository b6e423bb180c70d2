"""`zoo ...` in a process of its own, without the time of its imports.

Python's fork server imports everything once, and each process is forked from it. It has no threads, as strategies that
fork need it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from zoo.cli.main import main
from zoo.registry import MODELS

#: Processes on one machine that share a run.
DDP = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp_fork"]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["zoo.runs.options", *{entry.module for entry in MODELS.values()}])


def zoo_process(*arguments: object, code: int = 0) -> str:
    """Run `zoo` with this folder and this environment; returns its output.

    Args:
        *arguments: of the command line.
        code: the expected exit code.
    """
    printed = Path(f"printed-{os.urandom(8).hex()}").absolute()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = _FORKS.Process(target=_run, args=([*map(str, arguments)], os.getcwd(), environment, printed))
    process.start()
    process.join(600)
    if process.is_alive():
        process.kill()
    text = printed.read_text()
    printed.unlink()
    assert process.exitcode == code, text
    return text


def scores_of_one_and_two(checkpoint: object, *options: object) -> tuple[Any, Any]:
    """The scores of `zoo test` by one process, and by two that share the rows."""
    test = ["test", "--ckpt_path", str(checkpoint), *map(str, options)]
    assert main([*test, "--output=one.json", "--trainer.accelerator=cpu"]) == 0
    zoo_process(*test, "--output=two.json", *DDP)
    one, two = (json.loads(Path(output).read_text()) for output in ("one.json", "two.json"))
    return one, two


def _run(arguments: list[str], folder: str, environment: dict[str, str], printed: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)  # as `python -m zoo` has it
    file = os.open(printed, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.exit(main(arguments))
