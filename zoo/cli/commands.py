"""The commands whose options are those of a function: which function, in which module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jsonargparse import auto_cli

from datamodules.retrieval import load_all_retrievers

#: Command -> its function, or those of its subcommands. A module is imported when its command is called: most bring
#: PyTorch and Lightning, which take seconds.
FUNCTIONS: dict[str, str | dict[str, str]] = {
    "list": "zoo.cli.models:list_models",
    "export": "zoo.cli.models:export_model",
    "measure": "zoo.cli.measure:measure",
    "encode": "zoo.cli.vectors:encode",
    "index": "zoo.cli.memories:index",
    "search": "zoo.cli.memories:search",
    "inspect": "zoo.inspection.command:inspect",
    "reproduce": "zoo.reproduce.command:reproduce",
    "memory": {name: f"zoo.memory.commands:{name}" for name in ("add", "tune", "show")},
}


def run(command: str, options: list[str]) -> None:
    """Run a command whose function says all of its options."""
    load_all_retrievers()  # so that options can name them
    named = FUNCTIONS[command]
    components: Any = (
        _function(named) if isinstance(named, str) else {name: _function(one) for name, one in named.items()}
    )
    # What a command is about reads best first, without an option's name.
    first = {"search": "--query", "reproduce": "--name"}.get(command)
    if first and options and not options[0].startswith("-"):
        options = [first, *options]
    options = ["--list=true" if option == "--list" else option for option in options]
    # These take their checkpoint, table or folder by place.
    positional = command in ("memory", "export")
    auto_cli(components, options, as_positional=positional, prog=f"zoo {command}", exit_on_error=False)


def _function(named: str) -> Any:
    module, _, name = named.partition(":")
    return getattr(import_module(module), name)
