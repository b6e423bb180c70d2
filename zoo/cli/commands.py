"""The commands of `zoo`: one entry each. A module is imported when its command is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import compress, pairwise
from pkgutil import resolve_name
from typing import NamedTuple

from datamodules.core.errors import InputError
from datamodules.core.files import parsed
from datamodules.core.secrets import refuse_secrets
from zoo.runs.configs import find, read


class Command(NamedTuple):
    """One command."""

    summary: str
    example: str
    #: `module:function` whose arguments are the options, or such a function for each subcommand; see `parses`.
    target: str | dict[str, str]
    #: the function is called with the command's name and unparsed options.
    parses: bool = False
    #: option that may come first without its name.
    first: str | None = None
    #: required arguments are given by position.
    is_positional: bool = False


_RUN = "zoo.cli.runs:run"
_BOOLEANS = {"true", "false", "yes", "no"}
_MEMORY = {
    name: f"zoo.memory.commands:{name}"
    for name in ("add", "tune", "show", "remove", "relabel", "replace", "compact")
} | {name: f"zoo.memory.history:{name}" for name in ("log", "diff", "blame", "revert")}

# fmt: off
#: Group -> its commands, in the order of `zoo --help`.
GROUPS = {
    "Train and evaluate (options and YAML, see `zoo fit --help`)": {
        "fit": Command("train a model", "--data.train_file mine.csv", _RUN, parses=True),
        "validate": Command("scores on validation rows", "--ckpt_path MODEL", _RUN, parses=True),
        "test": Command("scores on a table", "--ckpt_path MODEL --data.test_file FILE --output metrics.json", _RUN, parses=True),
        "config": Command("the configurations of the zoo", "hmn/hmn4qa", "zoo.cli.models:config", first="--name"),
        "prepare": Command("read, index, retrieve, tokenize ahead of a run", "(options of fit)", _RUN, parses=True),
    },
    "Use a model (MODEL: a run folder, a model folder or a name on the Hub or in W&B)": {
        "predict": Command("labels or scores", "--ckpt_path MODEL --input FILE_OR_- --output out.jsonl", "zoo.cli.predict:run", parses=True),
        "serve": Command("predictions and the memory over HTTP", "MODEL --port 8000 --workers 2", "zoo.serve.command:serve", is_positional=True),
        "memory": Command("add, remove, relabel, replace, log, diff, blame, revert, compact, tune, show", "add MODEL more.csv", _MEMORY, is_positional=True),
        "audit": Command("labels of the memory that are probably wrong", "MODEL --output audit.csv", "zoo.audit:audit_memory", first="--model"),
        "export": Command("a folder to share", "MODEL FOLDER --push user/name", "zoo.cli.models:export_model", is_positional=True),
        "list": Command("the models of the zoo", "[NAME]", "zoo.cli.models:show_models", first="--name"),
    },
    "Retrieve": {
        "index": Command("build a memory", "--file FILE --memory FOLDER (or --embeddings FOLDER)", "zoo.search.index:index"),
        "search": Command("the best memories, of some words or a file of queries", '"some words" --memory FOLDER (or --queries FILE --output out.run)', "zoo.search.search:search", first="--query"),
        "suggest": Command("the texts of a table to label next", "--input POOL.csv --ckpt_path MODEL (or --encoder NAME_OR_FOLDER)", "zoo.search.suggest:suggest"),
        "encode": Command("embeddings of a table", "--encoder NAME_OR_FOLDER_OR_MODEL --input FILE --output FOLDER", "zoo.search.index:encode"),
    },
    "Reproduce": {
        "reproduce": Command("a table of a paper, every row for every seed", "[NAME --data_dir FOLDER]", "zoo.reproduce.run:reproduce", first="--name"),
    },
}
# fmt: on

COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}


def usage() -> str:
    """Return the text of `zoo --help`."""
    lines = ["usage: zoo COMMAND [OPTIONS]"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        for name, command in commands.items():
            lines += [f"  {name:10} {command.summary}", f"{'':13}zoo {name} {command.example}"]
    lines += ["", "A model or data of your own: zoo COMMAND ... --import mine imports mine.py first."]
    return "\n".join(lines)


def run(name: str, options: Sequence[str]) -> None:
    """Run a command; raises an `InputError` if there is none of this name."""
    if name not in COMMANDS:
        raise InputError(f"zoo {name}: no such command; there are {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    targets = command.target if isinstance(command.target, dict) else {"": command.target}
    functions: dict[str, Callable[..., None]] = {part: resolve_name(each) for part, each in targets.items()}
    if command.parses:
        functions[""](name, list(options))
        return
    from jsonargparse import auto_cli

    from zoo.runs.parser import Parser

    parameters = [each for function in functions.values() for each in signature(function).parameters.values()]
    if any(each.name == "retriever" for each in parameters):
        import_retrievers(options)
    flags = {f"--{each.name}" for each in parameters if each.annotation == "bool"}
    is_flag = [a in flags and b.lower() not in _BOOLEANS for a, b in pairwise([*options, ""])]
    values = [option for option, alone in zip(options, is_flag, strict=True) if not alone]
    options = [*values, *(f"{option}=true" for option in compress(options, is_flag))]
    if command.first is not None and options and not options[0].startswith("-"):
        options = [command.first, *options]
    auto_cli(
        functions.get("", {**functions}),
        list(options),
        as_positional=command.is_positional,
        prog=f"zoo {name}",
        parser_class=Parser,
    )


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
