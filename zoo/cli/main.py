"""The `zoo` command; errors that the user can correct are one line."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import FrameType
from typing import NoReturn

from typing_extensions import override

from datamodules.core.classes import searched
from datamodules.core.errors import InputError, excerpt, reason, visible
from datamodules.core.lightning import predict_only
from zoo import __version__
from zoo.cli import commands

#: Maximum number of characters of an error message.
_LONGEST = 1000
#: Exit code of a command that a signal has ended -> the message.
_SIGNALS = {128 + signal.SIGINT: "interrupted", 128 + signal.SIGTERM: "ended by SIGTERM"}


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments, or those of the process, and return the exit code.

    1: rows of a table failed, or the program did. 2: the user has to correct something. 128 plus its number: a signal
    ended the command, or the reader of its output has ended (SIGPIPE).
    """
    if args is None:
        args = sys.argv[1:]
        if args[:1] in (["predict"], ["encode"]):
            predict_only()
    args = list(args)
    if not args or args[0] in ("-h", "--help"):
        print(commands.usage())
        return 0
    _configure_logging()
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # which transformers reads as well
    try:
        with raising_sigterm():
            modules, args = _without_imports(args)
            # Before a run records its options: the run folder, W&B, error messages.
            commands.refuse_secrets_of(args)
            for module in modules:
                _import(module)
            if args[0] == "--version":
                print(__version__)
            else:
                commands.run(args[0], args[1:])
            sys.stdout.flush()  # raises an error if the reader has ended
    except (SystemExit, KeyboardInterrupt) as end:
        code = end.code if isinstance(end, SystemExit) else 128 + signal.SIGINT
        if code in _SIGNALS:
            for child in multiprocessing.active_children():
                child.kill()  # Python would wait for it, perhaps for hours
            _report(f"zoo: {_SIGNALS[code]}")
        # --help and --print_config end with a SystemExit, too.
        return code if isinstance(code, int) else 0
    except Exception as error:
        if isinstance(error, BrokenPipeError):  # `zoo predict ... | head -1`
            # Python would try to write the rest when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        line = _explain(error)
        if line is None or os.environ.get("ZOO_DEBUG") == "1":
            traceback.print_exc()
        if line is None:
            return 1
        _report(f"zoo: error: {excerpt(line, _LONGEST)}")
        return getattr(error, "exit_code", 2)
    return 0


def _without_imports(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the modules that `--import` names anywhere among the arguments, and the other arguments."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--import", dest="modules", action="append", nargs="?", const="", default=[])
    given, others = parser.parse_known_args(args)
    modules: list[str] = given.modules
    if not all(modules):
        raise InputError("--import: name a module, such as mine for the file mine.py")
    if not others:
        raise InputError(f"--import {', '.join(modules)}: name a command, such as `zoo --import mine fit`")
    return modules, others


def _import(name: str) -> None:
    """Import a module by its name or its file."""
    folder, file = os.path.split(name) if name.endswith(".py") else ("", name)
    module, folder = file.removesuffix(".py"), os.path.abspath(folder)
    # Libraries try names of others, such as `numexpr`, and a file of the folder may have such a name: they come first.
    import_module("zoo.runs.options")
    try:
        with searched(folder):
            _import_own(name, module.partition(".")[0], folder)
            import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module's own import
        raise InputError(f"--import {name}: no such module, here or installed") from None


def _import_own(name: str, module: str, folder: str) -> None:
    """Import a module or package of a folder, if it is there, although an installed one may have the same name."""
    spec = PathFinder.find_spec(module, [folder])
    if spec is None or spec.loader is None or spec.origin is None:
        return
    if (loaded := sys.modules.get(module)) is None:
        sys.modules[module] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    elif os.path.realpath(getattr(loaded, "__file__", None) or "") != os.path.realpath(spec.origin):
        raise InputError(f"--import {name}: Python or the zoo has a module {module}; rename the file")


def _explain(error: Exception) -> str | None:
    """Return the message for an error of the user's; None for any other error that ended a command."""
    if isinstance(error, InputError):
        return str(error)
    is_unloaded = isinstance(error, ImportError) and "failed to map segment" in str(error)
    if isinstance(error, MemoryError) or is_unloaded:
        return f"this machine has too little memory ({reason(error)}); use fewer rows, labels or threads"
    if not isinstance(error, OSError) or error.errno is None:
        return None
    what = excerpt(error.strerror or reason(error))
    if error.filename is None:
        return f"the system refuses: {what}"
    file = excerpt(error.filename)
    if isinstance(error, FileNotFoundError):
        return f"{file}: {what}; was it removed meanwhile? Run the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        return f"{file}: {what}; free some space or write elsewhere (--run_dir, --output, --data.cache_dir)"
    return f"{file}: {what}; check the name"


def _report(line: str) -> None:
    """Print a line, in only one of the processes that a launcher started for several devices."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(visible(line), file=sys.stderr)


class _Visible(logging.Formatter):
    """Shows the control characters of labels, texts and names of files."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).split("\n")))


def _configure_logging() -> None:
    """Print our own progress, and only warnings and errors of others."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Visible("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("zoo", "datamodules"):
        logging.getLogger(name).setLevel(logging.INFO)
    # It logs each failed request, which our own log does with the time of the next attempt.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def raising_sigterm() -> Iterator[None]:
    """Raise a SystemExit on SIGTERM, so that half-written files are deleted; Lightning itself would exit with 0."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
