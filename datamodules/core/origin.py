"""The origin of a trained model or a memory: this user, or a stranger.

A checkpoint names places outside of its folder: a memory, tables, a cache, a server, an encoder. A memory names a
server or an encoder. Both are signed with a key that only the user has. A model without this signature (exported, from
the Hub, or of another user) reads and writes inside its own folder, and the places that it names elsewhere are not used
unless the user names them. `SavedModel` and `open_memory` apply this rule.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from functools import cache
from pathlib import Path, PurePath

from datamodules.core.errors import InputError
from datamodules.core.storage import fingerprint_of, lock, new_file
from datamodules.core.types import PlainDict

log = logging.getLogger(__name__)

#: Beginning of the names that replace those of files which a stranger names.
ELSEWHERE = "/not-of-this-user/"
_KEY_BYTES = 32
#: `name` or `user/name`.
_HUB_NAME = re.compile(r"(\w[\w.-]{0,95}/)?\w[\w.-]{0,95}", re.ASCII)


def key_file() -> Path:
    """Return the file of the user's key: `$ZOO_KEY_FILE`, or else `~/.config/memory-zoo/key`."""
    if chosen := os.environ.get("ZOO_KEY_FILE"):
        return Path(chosen).expanduser().absolute()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "memory-zoo" / "key"


def sign(places: PlainDict) -> str | None:
    """Return the signature of the places that the user names; None where the user's key cannot be written."""
    key = _make_key(key_file())
    return None if key is None else _signature(places, key)


def is_signed(places: PlainDict, signature: object) -> bool:
    """Return True if this user has named these places."""
    if not isinstance(signature, str) or (key := _read_key(key_file())) is None:
        return False
    return hmac.compare_digest(signature.encode(), _signature(places, key).encode())


def own_name(name: object, folder: Path) -> str | None:
    """Return the name of a model that a stranger's options name, as it may be loaded: a folder inside of `folder`, or a
    name on the Hub. Any other name is replaced by one that does not exist.
    """
    if not isinstance(name, str):
        return None if name is None else absent(str(name))
    inside, local = os.path.realpath(folder), os.path.join(folder, name)
    if name and os.path.exists(local) and Path(inside) in Path(os.path.realpath(local)).parents:
        return local
    return name if _HUB_NAME.fullmatch(name) and not os.path.lexists(name) else absent(name)


def absent(name: str) -> str:
    """Return a name that does not exist, in place of that of a file which a stranger names."""
    return f"{ELSEWHERE}{PurePath(name).name[:100]}".replace("\0", "")


def _signature(places: PlainDict, key: bytes) -> str:
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
            "%s: cannot be written (%s), so that this run or memory is not recognized as yours later: name its"
            " memory then (--memory), or set ZOO_KEY_FILE to a file that can be written",
            file,
            error,
        )
        return None
