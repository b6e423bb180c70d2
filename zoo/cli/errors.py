"""Errors that are the user's to put right, each in one line: ours, the option parser's, Lightning's, the disk's."""

from __future__ import annotations

import errno
import re
import sys

from datamodules.errors import InputError


def explain(error: BaseException, command: str) -> str | None:
    """What to tell the user; None for an error that he did not make.

    Args:
        error: whatever ended a command.
        command: the command.
    """
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ValueError) and (cause := _cause(error)) is not None:
        # What a class refuses while the parser makes it arrives inside the parser's own error.
        return str(cause)
    if _is(error, "jsonargparse", "ArgumentError"):
        return f"{_of_the_parser(str(error))}; see `zoo {command} --help`"
    if _is(error, "lightning_fabric.utilities.exceptions", "MisconfigurationException"):
        # No such device, a strategy that can't be had.
        return f"--trainer: {_in_one_line(str(error))}"
    if _is(error, "torch.multiprocessing.spawn", "ProcessRaisedException"):
        # What a process that was forked for a device refused arrives as its printed traceback.
        refused = re.search(r"InputError: (.*)", str(error))
        return refused[1] if refused else None
    full_or_forbidden = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
    if isinstance(error, OSError) and error.errno in full_or_forbidden:
        return (
            f"{error.filename or 'a file'}: {error.strerror}; free some space or write elsewhere (--run_dir,"
            " --output, --data.cache_dir)"
        )
    return None


def _is(error: BaseException, module: str, name: str) -> bool:
    """Whether it is of a class that may not even be loaded."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name))


def _cause(error: BaseException) -> InputError | None:
    """The user's mistake behind an error, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _of_the_parser(message: str) -> str:
    """What the parser of options found wrong, without its account of the types that it tried."""
    message = _in_one_line(message)
    if found := re.match(r'Parser key "model": .*Expected a dot import path string: (\S+)', message):
        from zoo import MODELS

        return f"no model {found[1]!r}; there are {', '.join(MODELS)}"
    message = re.sub(r"Does not validate against any of the Union subtypes .*?Errors: - ", "", message)
    return re.sub(r" - Expected a <class 'NoneType'>.*", "", message)


def _in_one_line(message: str) -> str:
    return " ".join(message.split())
