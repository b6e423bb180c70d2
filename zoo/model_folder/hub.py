"""The Hugging Face Hub: models are downloaded and uploaded as folders."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from datamodules.core.errors import InputError, reason

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(source: str) -> bool:
    """Return True for a possible name of a repository, `user/name`."""
    return _NAME.fullmatch(source) is not None and not source.endswith(".ckpt")


@cache
def download(name: str) -> Path:
    """Download the files of a repository, once per process, and return their folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return Path(snapshot_download(name))
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{name}: no such file or folder, and no such model on the Hugging Face Hub"
        ) from error
    except OSError as error:  # of the Hub, of HTTP, or of the cache
        raise InputError(
            f"{name}: no such file or folder, and the Hugging Face Hub cannot be reached ({reason(error)[:80]}); check"
            " the connection or the name. HF_HUB_OFFLINE=1 uses only earlier downloads"
        ) from error


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload a model folder with the login of `huggingface-cli login` or $HF_TOKEN, and return its URL."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder), commit_message="Model of Memory Zoo")
    except Exception as error:  # errors of the Hub, of its client and of the HTTP library
        raise InputError(
            f"{name}: the Hugging Face Hub refuses or cannot be reached ({reason(error)})"
        ) from error
    return str(address)
