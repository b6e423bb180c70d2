"""What the benchmarks share: texts with Zipf's distribution of words, and CPU seconds of contenders that take turns."""

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of a script."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def zipf(random: np.random.Generator, size: int | tuple[int, ...], words: int) -> NDArray[np.int64]:
    """Word numbers from 1 to `words`, where word r has the probability ~ 1 / r."""
    cumulative = np.cumsum(1 / np.arange(1, words + 1))
    return 1 + np.searchsorted(cumulative, random.random(size) * cumulative[-1])


def zipf_texts(number: int, length: int, seed: int, words: int = 200_000) -> list[str]:
    """Texts of `length` words each, in blocks that need little memory."""
    random, names = np.random.default_rng(seed), np.array([f"w{rank}" for rank in range(words + 1)], object)
    texts: list[str] = []
    for first in range(0, number, 10_000):
        texts += map(" ".join, names[zipf(random, (min(10_000, number - first), length), words)])
    return texts


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process, which other programs on the machine change least."""
    start = time.process_time()
    work()
    return time.process_time() - start


def alternate(
    contenders: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2, statistic: Any = np.median
) -> dict[str, float]:
    """CPU seconds of each contender (their median by default) in rounds after a few that warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-warm_up, rounds):
        for name, work in contenders.items():
            taken = cpu_seconds(work)
            if number >= 0:
                seconds[name].append(taken)
    return {name: float(statistic(taken)) for name, taken in seconds.items()}
