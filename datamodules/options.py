"""The options of a data module: collected once, checked in one line each, read as attributes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities.parsing import AttributeDict

from datamodules.core.errors import InputError


class Configured(pl.LightningDataModule):
    """Knows what all constructors before it were given.

    A class of a data module names its own options and passes the rest on (`**shared`), so options that are shared
    are written once. This class stands behind all others and sees every one.
    """

    def __init__(self) -> None:
        super().__init__()
        # A retriever is an object; what describes it is kept beside the options.
        self.save_hyperparameters(ignore=["retriever"], logger=False)
        given = {name: value for name, value in self.hparams.items() if not name.startswith("_")}
        #: the options but for the retriever: plain values, as attributes and by name.
        self.options: Any = AttributeDict(given)


def check_least(options: Mapping[str, Any], least: Mapping[str, int]) -> None:
    """Refuse options that are too small.

    Args:
        options: values of a data module's options; None is allowed.
        least: the smallest value of each option that is a number.

    Raises:
        InputError: names the option.
    """
    for name, smallest in least.items():
        if options[name] is not None and options[name] < smallest:
            raise InputError(f"data.{name}={options[name]}: must be {smallest} or more")


def check_choices(options: Mapping[str, Any], choices: Mapping[str, Collection[Any]]) -> None:
    """Refuse values that are none of an option's choices.

    Raises:
        InputError: names the option and its choices.
    """
    for name, allowed in choices.items():
        if options[name] not in allowed:
            named = ", ".join(str(choice) for choice in allowed if choice)
            raise InputError(f"data.{name}={options[name]}: use one of {named}")
