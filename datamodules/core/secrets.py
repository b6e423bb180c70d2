"""Refusal of secrets in options and configurations, which are recorded; the environment is not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from datamodules.core.errors import InputError, excerpt

#: Advice in place of a secret.
ADVICE = (
    "credentials are read from the environment: ELASTICSEARCH_API_KEY, or ELASTICSEARCH_USERNAME and"
    " ELASTICSEARCH_PASSWORD (for OpenSearch: OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD)"
)
# Most tokens are words (max_tokens, pad_token). Secret are a bare `token` and those that grant access.
_SECRET_KEY = re.compile(
    r"^headers$|(password|passwd|secret|api_?key|credential|(basic|bearer|http)_auth|bearer"
    r"|(^|access|auth|api|hub|hf|refresh|session)_?token)s?$",
    re.IGNORECASE,
)
# A login in a URL, in any text; where the text is a URL, its password may contain anything.
_LOGIN = re.compile(r"://[^/\s]*@|^\s*https?://.*@", re.DOTALL)


def refuse_secrets(value: object, name: str, source: str = "") -> None:
    """Raise an `InputError` if the value of an option may hold a secret; it names the option, and no value."""
    for found in _secrets_in(value, name):
        raise InputError(f"{source}{excerpt(found)}: holds a secret, or may do so; {ADVICE}")


def _secrets_in(value: object, name: str) -> Iterator[str]:
    """Yield the names of options with secrets, with their dots."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secrets_in(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_in(item, name)
    elif value is not None:
        parts = name.removeprefix("--").split(".")
        is_url = parts[-1] == "url" and re.search("[@?#]", str(value))
        if is_url or any(map(_SECRET_KEY.search, parts)) or _LOGIN.search(str(value)):
            yield name
