"""Values of options before they are parsed: the model of --ckpt_path determines the other options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from datamodules.core.secrets import refuse_secrets


def named_values(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options with a value, written as `--option value` or `--option=value`."""
    for item, following in pairwise([*options, "--"]):
        name, equals, value = item.partition("=")
        if name.startswith("--") and equals:
            yield name, value
        elif name.startswith("--") and not following.startswith("--"):
            yield name, following


def import_retrievers(options: Sequence[str]) -> None:
    """Import the retrievers if options, or a file, may name one: the parser finds only imported classes."""
    if any(option.startswith(("--retriever", "--config", "--help", "-h")) for option in options):
        from datamodules.retrieval import load_all_retrievers

        load_all_retrievers()


def user_strings(options: Sequence[str]) -> set[str]:
    """Return all strings in the values of options, and in the files of --config."""
    strings: set[str] = set()
    for name, value in named_values(options):
        strings |= {value, *_strings_in(_parsed(value))}
        if name == "--config" and "\0" not in value and os.path.isfile(value):
            text = Path(value).read_text(encoding="utf-8", errors="replace")
            strings |= set(_strings_in(_parsed(text)))
    return strings


def refuse_secrets_of(options: Sequence[str]) -> None:
    """Raise an `InputError` if an option, or a file of --config, may hold a secret."""
    for name, value in named_values(options):
        parsed = _parsed(value)
        refuse_secrets(parsed if isinstance(parsed, dict | list) else value, name)
        if name == "--config" and "\0" not in value and os.path.isfile(value):
            text = Path(value).read_text(encoding="utf-8", errors="replace")
            refuse_secrets(_parsed(text), "", source=f"{value}: ")


def _parsed(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None  # the parser reports it


def _strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)
