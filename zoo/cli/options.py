"""Values of options before they are parsed: the model of --ckpt_path determines the other options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from datamodules.core.files import parsed
from datamodules.core.secrets import refuse_secrets
from zoo.runs.configs import find, read


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
    named = list(options)
    for place, option in enumerate(options):
        if option.startswith("--config="):
            named[place] = f"--config={find(option.removeprefix('--config='))}"
        elif option == "--config" and options[place + 1 :]:
            named[place + 1] = str(find(options[place + 1]))
    return named


def import_retrievers(options: Sequence[str]) -> None:
    """Import the retrievers if options, or a file, may name one: the parser finds only imported classes."""
    if any(option.startswith(("--retriever", "--config", "--help", "-h")) for option in options):
        from datamodules.retrieval import load_all_retrievers

        load_all_retrievers()


def refuse_secrets_of(options: Sequence[str]) -> None:
    """Raise an `InputError` if an option, or a file of --config, may hold a secret."""
    for name, value in named_values(options):
        values = parsed(value, name)
        refuse_secrets(values if isinstance(values, dict | list) else value, name)
        if name == "--config":
            refuse_secrets(parsed(read(value), value), "", source=f"{value}: ")
