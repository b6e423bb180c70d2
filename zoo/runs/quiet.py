"""Warnings and log messages of Lightning and PyTorch that concern no user."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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
    ".*monitor='val/encoder_accuracy'.* could not find",
    # A frozen encoder.
    "Found .* module.s. in eval mode",
)


#: They log missing devices and advertisements.
_LOGGERS = ("pytorch_lightning", "lightning_fabric")


@contextmanager
def quiet() -> Iterator[None]:
    """Hide these messages, and restore filters and levels at the end."""
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
