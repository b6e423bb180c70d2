"""The random states of the process during a run."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from datamodules.core.errors import InputError

_one_at_a_time = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch, and restore their states at the end.

    The states belong to the process: threads wait for each other.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed_everything: {seed} is not a seed; give a number from 0 to {2**32 - 1}")
    with _one_at_a_time:
        of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(range(torch.cuda.device_count()) if has_gpu else ()):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            try:
                yield
            finally:
                random.setstate(of_python)
                np.random.set_state(of_numpy)  # noqa: NPY002
