"""The fastest precision of a device in which vectors of texts are the same for all that reads them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def fast_precision(device: torch.device) -> AbstractContextManager[object]:
    """Compute in bfloat16 on a CPU that multiplies it in hardware: a third of the time, cosines of at least .9999.

    On the CPU alone: the precision on a GPU is the trainer's (`trainer.precision`).
    """
    import torch

    return torch.autocast("cpu", torch.bfloat16, enabled=device.type == "cpu" and _has_bfloat16())


@cache
def _has_bfloat16() -> bool:
    import torch

    if has := bool(torch.cpu._is_avx512_bf16_supported()):
        log.info("this CPU multiplies bfloat16: transformers encode texts in it")
    return has
