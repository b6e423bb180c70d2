"""Pre-trained models by their names on the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from datamodules.core.errors import InputError


@cache
def check_reachable(name: str) -> None:
    """Raise an `InputError` for a model that is not here, at once, if the Hub can't be reached."""
    model_folder(name, ("config.json",))


def model_folder(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Return the folder of a model, after a download of the files with these patterns if the Hub has the model.

    Raises an `InputError` if the Hub can't be reached. A wrong name is returned: loading the model explains the error.
    """
    if os.path.exists(name) or name.count("/") > 1 or name.startswith("."):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # The function for single files would retry for half a minute.
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name!r}: not a folder, and the Hugging Face Hub can't be reached; check the connection or"
            " the name. HF_HUB_OFFLINE=1 uses only files that were downloaded before"
        ) from error
    except Exception:  # a wrong name
        return Path(name)
