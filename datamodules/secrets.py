"""Keeps secrets out of what is written down."""

from __future__ import annotations

import re
from typing import Any

# Most tokens are words (max_tokens, pad_token); secret are those by themselves or of an access.
_SECRET_KEY = re.compile(
    r"(password|passwd|secret|api_?key|credential|(basic|bearer|http)_auth|bearer"
    r"|(^|access|auth|api|hub|hf|refresh|session)_?token)s?$",
    re.IGNORECASE,
)
# Up to the last @ before the path: a password may hold one; and spaces, where the value is nothing but a URL.
_URL_LOGIN = re.compile(r"(?<=://)[^/\s]+@")
_WHOLE_URL_LOGIN = re.compile(r"(?<=^http://)[^/]+@|(?<=^https://)[^/]+@")


def redact(value: Any) -> Any:
    """A copy of plain configuration values without secrets.

    Left out are values whose key names a secret (`api_key`, `basic_auth`, ...), everything in `client_args`
    and `headers`, and the login part of URLs.
    """
    if isinstance(value, dict):
        return {
            key: None if _names_secret(str(key)) and item is not None else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _URL_LOGIN.sub("", _WHOLE_URL_LOGIN.sub("", value))
    return value


def _names_secret(key: str) -> bool:
    return key in ("client_args", "headers") or _SECRET_KEY.search(key) is not None
