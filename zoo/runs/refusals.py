"""Errors of Lightning, of W&B and of other processes of a run as `InputError`, where they are called."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from datamodules.core.errors import InputError, raised_in, reason

#: Module -> the option whose value its code refuses by a ValueError or RuntimeError.
_REFUSING = {
    "pytorch_lightning.": "--trainer",
    "lightning_fabric.": "--trainer",
    "torch.optim": "--model.optimizer",
}
_PEER_IS_GONE = re.compile(r"Connection (closed|reset) by peer")


@contextmanager
def running() -> Iterator[None]:
    """Raise refusals of Lightning, of the optimizer, of W&B and of forked processes as `InputError`."""
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from torch.distributed import DistError
    from torch.multiprocessing.spawn import ProcessRaisedException

    try:
        yield
    except InputError:
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
    except _error_of_wandb() as error:
        raise InputError(
            f"--trainer.logger WandbLogger: {reason(error)} Log in with `wandb login` or $WANDB_API_KEY, or set"
            " WANDB_MODE=offline and upload the run later with `wandb sync`"
        ) from error


def _error_of_wandb() -> type[Exception] | tuple[()]:
    """Return the base of the errors of W&B, whose package may not be imported."""
    return getattr(sys.modules.get("wandb.errors"), "Error", ())
