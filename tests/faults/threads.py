"""One predictor in many threads, and in a process that one of them forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zoo
from tests.faults.campaigns import Campaign, Random, ensemble_options, made_run, zoo_run
from tests.zoo.conftest import COMMON_WORDS

THREADS = 8


def threads(folder: Path, server: str | None) -> Campaign:
    """Threads predict, encode and search unseen words at once; one forks: the results are those of one thread."""
    whole = made_run(folder / "whole")
    zoo_run(whole, *ensemble_options(whole), "--run_dir=ensemble")

    def case(random: Random, work: Path) -> Callable[[], Any]:
        run = whole / ("run", "ensemble")[int(random.integers(2))]
        texts = [
            [f"apple w{random.integers(10**9)} {random.choice(COMMON_WORDS)} é{row}" for row in range(30)]
            for _ in range(THREADS)
        ]
        uses = [int(random.integers(3)) for _ in range(THREADS)]
        return lambda: compare(run, texts, uses, forks=bool(random.integers(2)))

    return Campaign(case, [])


def use(predictor: Any, texts: list[str], kind: int) -> Any:
    """Predict, encode or search."""
    if kind == 0:
        return [round(each.probability, 4) for each in predictor.predict(texts)]
    if kind == 1:
        return predictor.encode(texts).round(3).tolist()
    return predictor.memory.search(texts, 3).scores.round(4).tolist()


def compare(run: Path, texts: list[list[str]], uses: list[int], forks: bool) -> list[str]:
    """Return the differences between one thread and many."""
    alone = zoo.load(run)
    expected = [use(alone, some, kind) for some, kind in zip(texts, uses, strict=True)]
    shared, barrier, problems = zoo.load(run), threading.Barrier(THREADS), []

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(3):
            try:
                if use(shared, texts[number], uses[number]) != expected[number]:
                    problems.append(f"thread {number}: another result of {uses[number]}")
            except Exception as error:
                problems.append(repr(error))

    started = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in started:
        thread.start()
    if forks and _status_of_fork(lambda: use(shared, texts[0], uses[0]) == expected[0]) != 0:
        problems.append("another result after a fork")
    for thread in started:
        thread.join()
    return problems


def _status_of_fork(is_right: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        os._exit(0 if is_right() else 3)
    return os.waitpid(child, 0)[1]
