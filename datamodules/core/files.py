"""Files that users give, plain or compressed."""

from __future__ import annotations

import difflib
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fsspec.compression import compr
from fsspec.core import get_compression

from datamodules.core.errors import InputError


class DamagedFile(Exception):
    """A compressed file is cut off, or isn't what its name says."""


def existing_file(path: str | Path) -> Path:
    """The path of a file that is there.

    Raises:
        InputError: it isn't; names those that are called almost so.
    """
    path = Path(path)
    if path.is_file():
        return path
    if path.exists():
        # A pipe would be waited for, perhaps for ever, and can't be read twice.
        raise InputError(f"{path}: is a {'folder' if path.is_dir() else 'pipe or a device'}; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: no such file, nor folder {path.parent}; check the path")
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    raise InputError(f"{path}: no such file; {hint}")


def binary_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, each with its line end; the ending of its name tells how it is compressed.

    Args:
        path: a file, plain or as .gz, .xz or .zip. Of a .zip with several files name one, as a folder's:
            `glove.6B.zip/glove.6B.100d.txt`.

    Raises:
        DamagedFile: what was compressed can't be unpacked.
        OSError: the file is missing or can't be read.
        InputError: a .zip has no such file, or several and none was named.
    """
    try:
        with _unpacked(path) as file:
            # Files that unpack make their lines in Python; a buffer in front makes them in C.
            yield from io.BufferedReader(file, 1 << 18)  # type: ignore[arg-type,type-var]
    except (InputError, MemoryError):
        raise
    except Exception as error:
        # Decompressors have errors of their own. One that is an OSError has no number: the system gave none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedFile(str(error) or type(error).__name__) from error


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    parents = (folder for folder in path.parents if folder.suffix.lower() == ".zip" and folder.is_file())
    if (archive := next(parents, None)) is not None or path.suffix.lower() == ".zip":
        name = None if archive is None else path.relative_to(archive).as_posix()
        with zipfile.ZipFile(archive or path) as opened, opened.open(_member(path, opened, name)) as file:
            yield file
        return
    with path.open("rb") as file:
        yield compr[get_compression(path.name, "infer")](file, mode="rb")


def _member(path: Path, archive: zipfile.ZipFile, name: str | None) -> str:
    """The file that was asked for by name, or the only one."""
    members = [info.filename for info in archive.infolist() if not info.is_dir()]
    if name is None and len(members) == 1:
        return members[0]
    if name not in members:
        folder = path if name is None else Path(str(path).removesuffix(f"/{name}"))
        example = folder / (members or ["FILE"])[0]
        problem = f"holds {len(members)} files" if name is None else "the archive has no such file"
        raise InputError(f"{path}: {problem}; name one that it has, as in {example}")
    return name
