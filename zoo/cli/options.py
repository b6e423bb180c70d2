"""Values of options before they are parsed: the model of --ckpt_path determines the other options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from datamodules.core.secrets import refuse_secrets
from zoo.runs.configs import find


def named_values(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options with a value, written as `--option value` or `--option=value`."""
    for item, following in pairwise([*options, "--"]):
        name, equals, value = item.partition("=")
        if name.startswith("--") and equals:
            yield name, value
        elif name.startswith("--") and not following.startswith("--"):
            yield name, following


def with_files(options: Sequence[str]) -> list[str]:
    """Return the options with files in place of the names of configurations."""
    named, is_value = list[str](), False
    for option in options:
        if is_value:
            named.append(str(find(option)))
        elif option.startswith("--config="):
            named.append(f"--config={find(option.removeprefix('--config='))}")
        else:
            named.append(option)
        is_value = option == "--config"
    return named


def import_retrievers(options: Sequence[str]) -> None:
    """Import the retrievers if options, or a file, may name one: the parser finds only imported classes."""
    if any(option.startswith(("--retriever", "--config", "--help", "-h")) for option in options):
        from datamodules.retrieval import load_all_retrievers

        load_all_retrievers()


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
