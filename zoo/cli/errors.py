"""One-line messages for errors that the user can correct: ours, the option parser's, Lightning's, the system's."""

from __future__ import annotations

import errno
import re
import sys

from datamodules.core.errors import LONGEST, InputError, excerpt, reason

#: Errors of its code are refusals of the user's options.
_LIGHTNING = ("pytorch_lightning.", "lightning_fabric.")
_PEER_IS_GONE = re.compile(r"Connection (closed|reset) by peer")
_REFUSALS = (ValueError, TypeError, RuntimeError, KeyError, ImportError, AttributeError)


def explain(error: BaseException, command: str) -> str | None:
    """Return the message for an error of the user's; None for any other error that ended a command."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ValueError) and (cause := _cause(error)) is not None:
        # The parser wraps errors of the classes that it makes.
        return str(cause)
    if _is(error, "torch.multiprocessing.spawn", "ProcessRaisedException"):
        # An error of a forked process arrives as its printed traceback.
        refused = re.search(r"InputError: (.*)", str(error))
        return refused[1] if refused else None
    if _is(error, "torch.distributed", "DistError") or _PEER_IS_GONE.search(str(error)):
        return "another process of the run has ended; see its message"
    if isinstance(error, OSError) and error.errno is not None:
        return _of_the_system(error)
    if isinstance(error, MemoryError):
        return f"this machine has too little memory ({reason(error)}); use fewer rows, labels or threads"
    if isinstance(error, ValueError) and str(error) == "embedded null byte":
        return "the name of a file holds a NUL character; give another"
    if _is(error, "wandb.errors", "Error"):
        return (
            f"--trainer.logger WandbLogger: {reason(error)} Log in with `wandb login` or $WANDB_API_KEY, or set"
            " WANDB_MODE=offline and upload the run later with `wandb sync`"
        )
    misconfigured = _is(error, "lightning_fabric.utilities.exceptions", "MisconfigurationException")
    module = _raised_in(error)
    if misconfigured or (isinstance(error, _REFUSALS) and module.startswith(_LIGHTNING)):
        # A missing device, an unavailable strategy, an interval longer than the epoch.
        option = "--seed_everything" if module.endswith(".seed") else "--trainer"
        return f"{option}: {reason(error)}"
    if isinstance(error, _REFUSALS) and module.startswith("torch.optim"):
        return f"--model.optimizer: {reason(error)}"
    is_of_parser = isinstance(error, _REFUSALS) and module.startswith("jsonargparse")
    if is_of_parser or _is(error, "jsonargparse", "ArgumentError"):
        return f"{_of_the_parser(str(error))}; see `zoo {command} --help`"
    if isinstance(error, UnicodeDecodeError):
        # Readers of tables name file and row themselves.
        return f"a file that was named, such as --config, is no text in UTF-8 ({reason(error)}); save it as UTF-8"
    return None


def _of_the_system(error: OSError) -> str:
    """Explain an error of the operating system."""
    what = excerpt(error.strerror or reason(error))
    if error.filename is None:
        return f"the system refuses: {what}"
    file = excerpt(error.filename)
    if isinstance(error, FileNotFoundError):
        return f"{file}: {what}; was it removed meanwhile? Run the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        return f"{file}: {what}; free some space or write elsewhere (--run_dir, --output, --data.cache_dir)"
    return f"{file}: {what}; check the name"


def _raised_in(error: BaseException) -> str:
    """Return the module whose code raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _is(error: BaseException, module: str, name: str) -> bool:
    """Return True if an error has this class, whose module may not be imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name))


def _cause(error: BaseException) -> InputError | None:
    """Return the `InputError` that caused an error, if any."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _of_the_parser(message: str) -> str:
    """Return a message of the option parser without the types that it tried."""
    message = " ".join(message.split())
    if match := re.match(r'Parser key "model": .*Expected a dot import path string: (\S+)', message):
        from zoo.registry import MODELS

        return f"no model {match[1]!r}; there are {', '.join(MODELS)}"
    message = re.sub(r"Does not validate against any of the Union subtypes .*?Errors: - ", "", message)
    # For a list of classes, the parser's message begins with the error of taking it as a single class.
    message = re.sub(r"Not a valid subclass of .* - (?=Problem with given class_path)", "", message)
    return excerpt(re.sub(r" - Expected a <class .*", "", message), 2 * LONGEST)
