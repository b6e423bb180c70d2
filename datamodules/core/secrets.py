"""Keeps secrets out of what is written down and printed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import yaml

# Most tokens are words (max_tokens, pad_token); secret are those by themselves or of an access.
_SECRET_KEY = re.compile(
    r"(password|passwd|secret|api_?key|credential|(basic|bearer|http)_auth|bearer"
    r"|(^|access|auth|api|hub|hf|refresh|session)_?token)s?$",
    re.IGNORECASE,
)
# Up to the last @ before the path: a password may hold one; and spaces, where the value is nothing but a URL.
_URL_LOGIN = re.compile(r"(?<=://)[^/\s]+@")
_WHOLE_URL_LOGIN = re.compile(r"(?<=^http://)[^/]+@|(?<=^https://)[^/]+@")
#: What follows the path may be a key as well.
_WHOLE_URL_QUERY = re.compile(r"(?<=^http)(s?://[^?#]*)[?#].*", re.DOTALL)
#: Where a login ends in a text that quotes a URL: a password may hold anything but a quote.
_QUOTED_LOGIN = re.compile(r"(?<=://)[^'\"]*@")
_QUOTED_VALUE = re.compile(
    r"((?:password|passwd|secret|api_?key|_auth|client_args|headers)s?[\"']?\s*[:=]\s*)[^\s,}][^,}]*",
    re.IGNORECASE,
)
_ENVIRONMENT = ("ELASTICSEARCH_API_KEY", "ELASTICSEARCH_PASSWORD", "WANDB_API_KEY", "HF_TOKEN")
#: Shorter ones would be found in every text.
_SHORTEST_SECRET = 4


def redact(value: Any) -> Any:
    """A copy of plain configuration values without secrets.

    Left out are values whose key names a secret (`api_key`, `basic_auth`, ...), everything in `client_args`
    and `headers`, and the login and the query of URLs.
    """
    if isinstance(value, dict):
        return {
            key: None if _names_secret(str(key)) and item is not None else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _WHOLE_URL_QUERY.sub(r"\1", _URL_LOGIN.sub("", _WHOLE_URL_LOGIN.sub("", value)))
    return value


def _names_secret(key: str) -> bool:
    return key in ("client_args", "headers") or _SECRET_KEY.search(key) is not None


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command's arguments without secrets; they may still be parsed."""
    redacted = []
    name = ""
    for item in arguments:
        if item.startswith("--"):
            name, equals, value = item.partition("=")
            redacted.append(f"{name}={_redact_value(name, value)}" if equals else name)
        else:
            redacted.append(_redact_value(name, item))
    return redacted


def _redact_value(name: str, value: str) -> str:
    if any(map(_names_secret, name.removeprefix("--").split("."))):
        return "null"
    if value[:1] not in ("{", "["):
        # One that can't be parsed is refused, but has been recorded by then.
        shown = re.sub(r"^(https?://)?.*@", r"\1", value) if name.endswith("url") else value
        return str(redact(shown))
    try:
        return json.dumps(redact(yaml.safe_load(value)))
    except (yaml.YAMLError, TypeError):
        return "null"


def secrets_of(arguments: Sequence[str]) -> set[str]:
    """The secrets that a command was given: among its arguments, and in the environment."""
    found = {os.environ.get(name, "") for name in _ENVIRONMENT}
    name = ""
    for item in arguments:
        value = item
        if item.startswith("--"):
            name, _, value = item.partition("=")
        hidden = any(map(_names_secret, name.removeprefix("--").split(".")))
        try:
            plain = yaml.safe_load(value) if value[:1] in ("{", "[") else value
        except yaml.YAMLError:
            plain = value
        found.update(_secrets_in(plain, hidden))
    return {secret for secret in found if len(secret) >= _SHORTEST_SECRET}


def _secrets_in(value: Any, hidden: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secrets_in(item, hidden or _names_secret(str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_in(item, hidden)
    elif hidden and value is not None:
        yield str(value)
    elif "://" in str(value) and "@" in str(value):
        password = str(value).split("://", 1)[1].rpartition("@")[0].partition(":")[2]
        yield from (password, unquote(password))


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """A message, or a traceback, without secrets.

    Args:
        text: what would be printed.
        secrets: those that are known, see `secrets_of`.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "...")
    text = "\n".join(_QUOTED_LOGIN.sub("...@", line) for line in text.split("\n"))
    return _QUOTED_VALUE.sub(r"\1...", text)
