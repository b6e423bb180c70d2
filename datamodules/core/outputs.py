"""Checks of output files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from datamodules.core.errors import InputError
from datamodules.core.storage import named_disk_errors


def check_output(output: str, inputs: Iterable[str], option: str = "--output") -> Path:
    """Make the folder of an output file; raises an `InputError` for a path that is no file's, or an input's."""
    path = Path(output)
    if not path.name or "\0" in output:
        raise InputError(f"{option} {output!r}: names no file; name one")
    with named_disk_errors(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return path
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe, which would be replaced"
        raise InputError(f"{option} {output}: is {kind}; name a file")
    for file in inputs:
        if Path(file).exists() and path.samefile(file):
            raise InputError(f"{option} {output}: is {file}, which this command reads; name another file")
    return path
