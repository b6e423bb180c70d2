"""The process during a run: its random states, and the warnings and errors of other packages."""

from __future__ import annotations

import logging
import random
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch.distributed import DistError
from torch.multiprocessing.spawn import ProcessRaisedException

from datamodules.core.errors import InputError, raised_in, reason

#: Warnings of Lightning and PyTorch that concern no user.
_IRRELEVANT = (
    # Between Lightning and PyTorch.
    ".*LeafSpec.* is deprecated",
    # A resumed run continues in its folder, and `CSVMetrics` deletes nothing.
    "Experiment logs directory .* exists",
    "Checkpoint directory .* exists",
    # A test needs no callbacks of the training.
    "Be aware that when using `ckpt_path`",
    # The scores are summed over processes already, exactly.
    "It is recommended to use `self.log",
    # Of small tables: an epoch's scores are logged at its end.
    "The number of training batches",
    ".*does not have many workers",
    # There are no validation rows: the last epoch counts.
    "Total length of `DataLoader` across ranks is zero",
    ".*ModelCheckpoint.monitor=.* could not find",
    # A frozen encoder.
    "Found .* module.s. in eval mode",
)
#: They log missing devices and advertisements.
_LOGGERS = ("pytorch_lightning", "lightning_fabric")
#: Module -> the option whose value its code refuses by a ValueError or RuntimeError.
_REFUSING = {
    "pytorch_lightning.": "--trainer",
    "lightning_fabric.": "--trainer",
    "torch.optim": "--model.optimizer",
}
_PEER_IS_GONE = re.compile(r"Connection (closed|reset) by peer")
_one_at_a_time = threading.RLock()


@contextmanager
def running(seed: int) -> Iterator[None]:
    """Seed the process, hide irrelevant messages, and raise refusals of others as `InputError`."""
    with seeded(seed), _quiet(), _refusing():
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch, and restore their states at the end.

    The states belong to the process: threads wait for each other.
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed_everything: {seed} is not a seed; give a number from 0 to {2**32 - 1}")
    with _one_at_a_time:
        is_flushing = bool(torch.tensor(1e-40) * 1 == 0)  # denormal numbers to 0, which a task may change
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
                torch.set_flush_denormal(is_flushing)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide irrelevant messages, and restore filters and levels at the end."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    with warnings.catch_warnings():
        for message in _IRRELEVANT:
            warnings.filterwarnings("ignore", message=message)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(max(level, logging.WARNING))
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise refusals of Lightning, of the optimizer, of W&B and of forked processes as `InputError`."""
    try:
        yield
    except InputError:
        raise
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # which Lightning turns into an exit
            raise end.__context__ from None
        raise
    except MisconfigurationException as error:
        raise InputError(f"--trainer: {reason(error)}") from error
    except ProcessRaisedException as error:
        # The error of a forked process arrives as its printed traceback.
        if (refused := re.search(r"InputError: (.*)", str(error))) is None:
            raise
        raise InputError(refused[1]) from error
    except (ValueError, RuntimeError) as error:
        if isinstance(error, DistError) or _PEER_IS_GONE.search(str(error)):
            raise InputError("another process of the run has ended; see its message") from error
        module = raised_in(error)
        option = next((option for name, option in _REFUSING.items() if module.startswith(name)), None)
        if option is None:
            raise
        raise InputError(f"{option}: {reason(error)}") from error
    except getattr(sys.modules.get("wandb.errors"), "Error", ()) as error:  # if it is imported
        raise InputError(
            f"--trainer.logger WandbLogger: {reason(error)} Log in with `wandb login` or $WANDB_API_KEY, or set"
            " WANDB_MODE=offline and upload the run later with `wandb sync`"
        ) from error
