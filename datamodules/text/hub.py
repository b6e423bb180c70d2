"""Pre-trained models by their names on the Hugging Face Hub."""

from __future__ import annotations

import os
from functools import cache

from datamodules.core.errors import InputError


@cache
def check_reachable(name: str) -> None:
    """Ask for one file of a pre-trained model, once: `transformers` asks for many, and tries each for a while.

    Args:
        name: of the Hub, or a folder.

    Raises:
        InputError: it is neither on this machine nor can the Hub be asked.
    """
    if os.path.exists(name) or name.count("/") > 1 or name.startswith("."):
        return
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot_download(
            name, allow_patterns=["config.json"]
        )  # a single file would be tried for half a minute
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name!r}: no folder of this machine, and the Hugging Face Hub can't be reached; check the connection or"
            " the name. HF_HUB_OFFLINE=1 asks only for what was downloaded before"
        ) from error
    except Exception:  # what is wrong with the name, whoever loads the model says
        return
