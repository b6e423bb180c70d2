"""Checks of output files, lines of JSON, and cells of tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path

from datamodules.core.errors import DamagedError, InputError, visible
from datamodules.core.files import is_number
from datamodules.core.storage import named_disk_errors, new_file

#: First characters of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def check_output(output: str, inputs: Iterable[str], suffix: str = "") -> Path:
    """Make the folder of an output file; raises an `InputError` for a path of no such file, or of an input."""
    path = Path(output)
    if not path.name or "\0" in output:
        raise InputError(f"--output {output!r}: names no file; name one")
    if not path.name.lower().endswith(suffix):
        raise InputError(f"--output {output}: what is written is a {suffix} file; name one")
    with named_disk_errors(path, "--output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return path
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe, which would be replaced"
        raise InputError(f"--output {output}: is {kind}; name a file")
    if (path.parent / "model.json").is_file():
        problem = f"is a file of the model {path.parent}, which this command reads"
        raise InputError(f"--output {output}: {problem}; name another file")
    for file in inputs:
        if Path(file).exists() and path.samefile(file):
            raise InputError(f"--output {output}: is {file}, which this command reads; name another file")
    return path


def json_line(prediction: object, source: str) -> str:
    """Return a prediction of the model `source` as a line of JSON; raise a `DamagedError` if a score is not finite."""
    try:
        return visible(json.dumps(prediction, ensure_ascii=False, allow_nan=False))
    except ValueError as error:
        problem = "no finite scores: its training diverged, or its weights are damaged"
        raise DamagedError(f"{source}: {problem}; use another checkpoint") from error


def write_csv(file: Path, lines: Iterable[Iterable[object]], option: str = "folder") -> None:
    """Write lines of cells, as they are, as a CSV file in one step; see `new_file` for `option`."""
    with new_file(file, option) as partial, partial.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows(lines)


def spreadsheet_cells(values: Iterable[object]) -> list[object]:
    """Return the cells of a row of a table that people open: a text that begins like a formula gets a leading '.

    A spreadsheet would execute the formula, which a stranger may have written. Numbers stay as they are.
    """
    return [
        f"'{value}"
        if isinstance(value, str) and value.startswith(_FORMULA) and not is_number(value)
        else value
        for value in values
    ]
