"""Removal of secrets from everything that is written to files and printed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import yaml

# Most tokens are words (max_tokens, pad_token). Secret are a bare `token` and those that grant access.
_SECRET_KEY = re.compile(
    r"^(client_args|headers)$|(password|passwd|secret|api_?key|credential|(basic|bearer|http)_auth|bearer"
    r"|(^|access|auth|api|hub|hf|refresh|session)_?token)s?$",
    re.IGNORECASE,
)
# Up to the last @ before the path, because a password may contain one. Spaces are part of it only where the value is
# nothing but a URL.
_URL_LOGIN = re.compile(r"(?<=://)[^/\s]+@")
_WHOLE_URL_LOGIN = re.compile(r"(?<=^http://)[^/]+@|(?<=^https://)[^/]+@")
# The query of a URL may contain a key.
_WHOLE_URL_QUERY = re.compile(r"(?<=^http)(s?://[^?#]*)[?#].*", re.DOTALL)
# In a text that quotes a URL, a password may contain anything but a quote.
_QUOTED_LOGIN = re.compile(r"(?<=://)[^'\"]*@")
_QUOTED_VALUE = re.compile(
    r"((?:password|passwd|secret|api_?key|_auth|client_args|headers)s?[\"']?\s*[:=]\s*)[^\s,}][^,}]*",
    re.IGNORECASE,
)
_ENVIRONMENT = ("ELASTICSEARCH_API_KEY", "ELASTICSEARCH_PASSWORD", "WANDB_API_KEY", "HF_TOKEN")
#: Shorter secrets would match parts of ordinary texts.
_SHORTEST_SECRET = 4


def redact(value: Any) -> Any:
    """Return plain values without those whose key names a secret, and without the login and the query of URLs."""
    if isinstance(value, dict):
        return {
            key: None if _is_secret(str(key)) and item is not None else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _WHOLE_URL_QUERY.sub(r"\1", _URL_LOGIN.sub("", _WHOLE_URL_LOGIN.sub("", value)))
    return value


def _is_secret(name: str) -> bool:
    """Return whether a key, or an option with its dots, names a secret."""
    return any(map(_SECRET_KEY.search, name.removeprefix("--").split(".")))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments without secrets; they can still be parsed."""
    return [
        prefix if value is None else prefix + _redact_value(option, value)
        for option, prefix, value in _split(arguments)
    ]


def _split(arguments: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """Split arguments into the option, the part before the value, and the value (None: the next argument)."""
    option = ""
    for argument in arguments:
        if not argument.startswith("--"):
            yield option, "", argument
            continue
        option, equals, value = argument.partition("=")
        yield option, option + equals, value if equals else None


def _redact_value(option: str, value: str) -> str:
    if _is_secret(option):
        return "null"
    if value[:1] not in ("{", "["):
        # A malformed URL is refused, but only after it was recorded.
        shown = re.sub(r"^(https?://)?.*@", r"\1", value) if option.endswith("url") else value
        return str(redact(shown))
    try:
        return json.dumps(redact(yaml.safe_load(value)))
    except (yaml.YAMLError, TypeError):
        return "null"


def secrets_of(arguments: Sequence[str]) -> set[str]:
    """Collect the secrets that a command received by its arguments and the environment."""
    secrets = {os.environ.get(name, "") for name in _ENVIRONMENT}
    for option, _, value in _split(arguments):
        try:
            plain = yaml.safe_load(value) if value is not None and value[:1] in ("{", "[") else value
        except yaml.YAMLError:
            plain = value
        secrets.update(_secrets_in(plain, _is_secret(option)))
    return {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}


def _secrets_in(value: object, is_secret: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secrets_in(item, is_secret or _is_secret(str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_in(item, is_secret)
    elif is_secret and value is not None:
        yield str(value)
    elif "://" in str(value) and "@" in str(value):
        password = str(value).split("://", 1)[1].rpartition("@")[0].partition(":")[2]
        yield from (password, unquote(password))


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """Remove secrets, known ones (see `secrets_of`) and others, from a message or a traceback."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "...")
    text = "\n".join(_QUOTED_LOGIN.sub("...@", line) for line in text.split("\n"))
    return _QUOTED_VALUE.sub(r"\1...", text)
