"""One-line messages for errors that the user can correct: ours, and those of the operating system."""

from __future__ import annotations

import errno

from datamodules.core.errors import InputError, excerpt, reason


def explain(error: BaseException) -> str | None:
    """Return the message for an error of the user's; None for any other error that ended a command."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return _of_the_system(error)
    if isinstance(error, MemoryError):
        return f"this machine has too little memory ({reason(error)}); use fewer rows, labels or threads"
    return None


def _of_the_system(error: OSError) -> str:
    what = excerpt(error.strerror or reason(error))
    if error.filename is None:
        return f"the system refuses: {what}"
    file = excerpt(error.filename)
    if isinstance(error, FileNotFoundError):
        return f"{file}: {what}; was it removed meanwhile? Run the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        return f"{file}: {what}; free some space or write elsewhere (--run_dir, --output, --data.cache_dir)"
    return f"{file}: {what}; check the name"
