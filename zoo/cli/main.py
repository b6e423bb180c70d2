"""The `zoo` command: which commands there are, and one line for what a user has to put right."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

from datamodules.core.errors import InputError
from datamodules.core.secrets import hide, redact_arguments, secrets_of
from zoo.cli.errors import explain
from zoo.cli.signals import end_children, ending_signal, raising_sigterm

USAGE = """usage: zoo COMMAND [OPTIONS]

Train and evaluate (options and YAML, see `zoo fit --help`):
  fit        train a model            zoo fit --config examples/knn_bilstm/ag_news.yaml
  validate   scores of a checkpoint on validation rows
  test       scores of a checkpoint   zoo test --ckpt_path CKPT --data.test_file FILE --output metrics.json
  prepare    read, index, retrieve and tokenise ahead of a run (same options as fit)

Use and look:
  predict    labels or scores         zoo predict --ckpt_path CKPT --input FILE_OR_- --output out.jsonl
  measure    scores of TREC runs      zoo measure --judgements QRELS --runs "[ONE.run, OTHER.run]"
  list       the models
  export     a folder to share        zoo export CKPT FOLDER --push user/name
  encode     a table's embeddings     zoo encode --ckpt_path CKPT --input FILE --output FOLDER
  index      build a memory           zoo index --file FILE --memory FOLDER (or --embeddings FOLDER)
  memory     grow, tune, show         zoo memory add CKPT more.csv
  search     the best memories        zoo search "some words" --memory FOLDER
  inspect    gates, keywords, topics  zoo inspect --ckpt_path CKPT --query "some words" --output FOLDER

  compare    runs side by side        zoo compare runs/* --output comparison

Tables of the papers:
  reproduce  every row for every seed zoo reproduce NAME --data_dir FOLDER (zoo reproduce --list)

A model or data of your own: zoo --import MODULE COMMAND ... imports it first.
"""

#: Command -> module and function that runs it, called with the command and its options.
COMMANDS = {
    "fit": "zoo.cli.lightning:run",
    "validate": "zoo.cli.lightning:run",
    "test": "zoo.cli.lightning:run",
    "prepare": "zoo.cli.lightning:run",
    "predict": "zoo.cli.predict:run",
    "measure": "zoo.cli.commands:run",
    "list": "zoo.cli.commands:run",
    "encode": "zoo.cli.commands:run",
    "index": "zoo.cli.commands:run",
    "search": "zoo.cli.commands:run",
    "inspect": "zoo.cli.commands:run",
    "memory": "zoo.cli.commands:run",
    "reproduce": "zoo.cli.commands:run",
    "compare": "zoo.comparison.command:run",
    "export": "zoo.cli.commands:run",
}


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: the arguments; None = those of the process.

    Returns:
        The exit code: 0; 1 where a table has rows that failed, or the program has; 2 where the user has to put
        something right; 128 and the signal's number where one ended it: 130 for an interrupt, 143 for SIGTERM, 141
        where the reader of the output is gone.
    """
    if args is None:
        args = sys.argv[1:]
        # W&B writes them down; processes for other devices get them too, and ask no server.
        sys.argv[1:] = redact_arguments(args)
    args = list(args)
    secrets = secrets_of(args)
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    _quieten()
    try:
        with raising_sigterm():
            while args[0] == "--import" and len(args) > 2:
                import_module(args[1])
                args = args[2:]
            _run(args[0], args[1:])
            sys.stdout.flush()  # or a reader that is gone would be noticed after the end
    except (SystemExit, KeyboardInterrupt) as end:
        if (ended_by := ending_signal(end)) is not None:
            end_children()
            _say("zoo: interrupted" if ended_by == signal.SIGINT else f"zoo: ended by {ended_by.name}")
            return 128 + ended_by
        # --help and --print_config end this way.
        return end.code if isinstance(end, SystemExit) and isinstance(end.code, int) else 0
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 128 + signal.SIGPIPE
        if (line := explain(error, args[0])) is None:
            print(hide(traceback.format_exc(), secrets), end="", file=sys.stderr)
            return 1
        _say(f"zoo: error: {_hidden(error, line, secrets)}")
        return 2
    return 0


def _hidden(error: Exception, line: str, secrets: set[str]) -> str:
    """The line without secrets; ours name options that would look like some."""
    if isinstance(error, InputError):
        for secret in secrets:
            line = line.replace(secret, "...")
        return line
    return hide(line, secrets)


def _reader_is_gone() -> bool:
    """Whether nobody reads the standard output any more (`zoo predict ... | head -1`): no error, but an end."""
    output = sys.stdout.fileno()
    asked = select.poll()
    asked.register(output, 0)
    if not asked.poll(0):
        return False
    # Python would try to write what is left at its own end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _say(line: str) -> None:
    """Print why the command ends; of the processes that a launcher started for other devices, one is enough."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(line, file=sys.stderr)


def _run(command: str, options: list[str]) -> None:
    if command == "--version":
        import zoo

        print(zoo.__version__)
        return
    if command not in COMMANDS:
        raise InputError(f"zoo {command}: no such command; there are {', '.join(COMMANDS)}")
    module, _, name = COMMANDS[command].partition(":")
    function: Callable[[str, list[str]], None] = getattr(import_module(module), name)
    function(command, options)


def _quieten() -> None:
    """Leave the screen to what concerns the user: errors, progress, scores."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for name in ("zoo", "datamodules"):
        logging.getLogger(name).setLevel(logging.INFO)
    # It counts failures that our own log tells, with when the next try is.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)
    # LightningCLI's own calls of jsonargparse, and how we call LightningCLI.
    warnings.filterwarnings("ignore", module=r"pytorch_lightning\.cli")
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    for message in (
        # Between Lightning and PyTorch.
        ".*LeafSpec.* is deprecated",
        # A resumed run goes on in its folder, and `CSVMetrics` deletes nothing.
        "Experiment logs directory .* exists",
        "Checkpoint directory .* exists",
        # A test needs no callbacks of the training.
        "Be aware that when using `ckpt_path`",
        # The scores are summed over processes already, exactly.
        "It is recommended to use `self.log",
        # Of small tables: nothing is lost, an epoch's figures are logged at its end.
        "The number of training batches",
        ".*does not have many workers",
        # A frozen encoder.
        "Found .* module.s. in eval mode",
    ):
        warnings.filterwarnings("ignore", message=message)
