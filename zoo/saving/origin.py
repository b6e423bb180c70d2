"""The origin of a trained model: a run of this user, or a stranger.

A checkpoint names places outside of its folder: a memory, tables, a cache. A run signs them with a key that only the
user has. A model without this signature (exported, from the Hub, or of another user) reads and writes inside its own
folder, and the places that it names elsewhere are not used. `SavedModel` applies this rule.
"""

from __future__ import annotations

import hmac
import logging
import os
from functools import cache
from pathlib import Path

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of, lock, new_file
from datamodules.state import DataState

log = logging.getLogger(__name__)

_KEY_BYTES = 32


def key_file() -> Path:
    """Return the file of the user's key: `$ZOO_KEY_FILE`, or else `~/.config/memory-zoo/key`."""
    if chosen := os.environ.get("ZOO_KEY_FILE"):
        return Path(chosen).expanduser().absolute()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "memory-zoo" / "key"


def sign(state: DataState) -> str | None:
    """Return the signature of the places that a run names; None where the user's key cannot be written."""
    key = _make_key(key_file())
    return None if key is None else _signature(state, key)


def is_signed(state: DataState, signature: str | None) -> bool:
    """Return True if a run of this user names these places."""
    if not isinstance(signature, str) or (key := _read_key(key_file())) is None:
        return False
    return hmac.compare_digest(signature.encode(), _signature(state, key).encode())


def _signature(state: DataState, key: bytes) -> str:
    memory = None if state.memory is None else state.memory.to_dict()
    places = {"options": state.options, "retriever": state.retriever, "memory": memory}
    return hmac.new(key, fingerprint_of(places).encode(), "sha256").hexdigest()


def _read_key(file: Path) -> bytes | None:
    try:
        key = file.read_bytes()
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None


@cache
def _make_key(file: Path) -> bytes | None:
    """Read the key, after it was made by the first run; None, with a warning, where that fails."""
    try:
        with lock(file):
            if (key := _read_key(file)) is None:
                with new_file(file) as partial:
                    partial.touch(mode=0o600)
                    partial.write_bytes(os.urandom(_KEY_BYTES))
                key = _read_key(file)
        return key
    except (InputError, OSError) as error:
        log.warning(
            "%s: cannot be written (%s), so that this run is not recognized as yours later: name its memory then"
            " (--memory), or set ZOO_KEY_FILE to a file that can be written",
            file,
            error,
        )
        return None
