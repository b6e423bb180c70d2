"""Pre-trained models by their names on the Hugging Face Hub."""

from __future__ import annotations

import os
from functools import cache

from datamodules.core.errors import InputError


@cache
def check_reachable(name: str) -> None:
    """Raise an `InputError` for a model that is not here, at once, if the Hub can't be reached."""
    if os.path.exists(name) or name.count("/") > 1 or name.startswith("."):
        return
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # The function for single files would retry for half a minute.
        snapshot_download(name, allow_patterns=["config.json"])
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name!r}: not a folder, and the Hugging Face Hub can't be reached; check the connection or"
            " the name. HF_HUB_OFFLINE=1 uses only files that were downloaded before"
        ) from error
    except Exception:  # a wrong name, which loading the model explains
        return
