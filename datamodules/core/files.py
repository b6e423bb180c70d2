"""Files that users give, plain or compressed."""

from __future__ import annotations

import bz2
import difflib
import gzip
import io
import lzma
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import yaml

from datamodules.core.errors import InputError, reason
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from torch import Tensor

#: Bytes of the longest line.
LONGEST_LINE = 1 << 28
#: Beyond both limits, a compressed file is refused: its bytes when they are unpacked, and their ratio.
MOST_UNPACKED, LARGEST_RATIO = 1 << 28, 100

_OPEN: dict[str, Callable[[Path, str], IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".xz": lzma.open,  # type: ignore[dict-item]
    ".bz2": bz2.open,  # type: ignore[dict-item]
}


def existing_file(path: str | Path) -> Path:
    """Return the path of a file that exists; else raise an `InputError` that suggests files with similar names."""
    path = Path(path)
    if path.is_file():
        return path
    if path.exists():
        # Reading a pipe may block for ever, and a pipe can't be read twice.
        raise InputError(f"{path}: is a {'folder' if path.is_dir() else 'pipe or a device'}; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: no such file, nor folder {path.parent}; check the path")
    names = sorted(entry.name for entry in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    raise InputError(f"{path}: no such file; {hint}")


def binary_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a file, plain or as .gz, .xz, .bz2 or .zip, each with its line end.

    If a .zip holds several files, name one like a file in a folder: `glove.6B.zip/glove.6B.100d.txt`.
    """
    path = Path(path)
    lines = unpacked = 0
    try:
        with _opened(path) as file:
            # The decompressors split lines in Python, a buffer around them in C.
            buffered = io.BufferedReader(file, 1 << 18)  # type: ignore[arg-type,type-var]
            packed = next(part for part in (path, *path.parents) if part.is_file()).stat().st_size
            for line in iter(partial(buffered.readline, LONGEST_LINE), b""):
                lines += 1
                unpacked += len(line)
                if len(line) == LONGEST_LINE:
                    raise InputError(f"{path}: line {lines} has more than {LONGEST_LINE >> 20} MB; split it")
                check_expansion(path, packed, unpacked)
                yield line
    except (InputError, MemoryError):
        raise
    except Exception as error:
        # Every decompressor has its own exceptions. An OSError of the system has a number, those of others have none.
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{path}: can't be read ({error.strerror}); check file and rights") from error
        problem = f"truncated or damaged after line {lines} ({reason(error)})"
        raise InputError(f"{path}: {problem}; copy, download or compress it again") from error


def check_expansion(path: Path, packed: int, unpacked: int) -> None:
    """Refuse a compressed file that unpacks to far more bytes than tables do: it would fill the memory."""
    if unpacked > MOST_UNPACKED and unpacked > LARGEST_RATIO * packed:
        limits = f"{MOST_UNPACKED >> 20} MB and {LARGEST_RATIO} times its size"
        advice = "if it is one, unpack it and name the unpacked file"
        raise InputError(f"{path}: unpacks to more than {limits}, as no table does; {advice}")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    archives = (part for part in (path, *path.parents) if part.suffix.lower() == ".zip" and part.is_file())
    archive = next(archives, None)
    if archive is not None:
        with zipfile.ZipFile(archive) as members, members.open(_member(path, archive, members)) as file:
            yield file
        return
    with _OPEN.get(path.suffix.lower(), Path.open)(existing_file(path), "rb") as file:
        yield file


def _member(path: Path, archive: Path, members: zipfile.ZipFile) -> str:
    """Return the file that the path names in an archive, or the only one."""
    names = [info.filename for info in members.infolist() if not info.is_dir()]
    if path == archive and len(names) == 1:
        return names[0]
    name = path.relative_to(archive).as_posix()
    if name not in names:
        problem = f"holds {len(names)} files" if path == archive else "the archive has no such file"
        example = archive / (names or ["FILE"])[0]
        raise InputError(f"{path}: {problem}; name one that it has, as in {example}")
    return name


def load_tensors(file: Path, advice: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; raise an `InputError` that names it if it is damaged."""
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except Exception as error:  # of its Rust code, of PyTorch for shapes beyond 64 bits, or of the system
        raise InputError(f"{file}: damaged ({reason(error)}); {advice}") from error


def is_number(field: str | bytes) -> bool:
    """Return whether a field of a file can be read as a number, nan and inf included."""
    try:
        float(field)
    except ValueError:
        return False
    return True


#: Most values of a YAML text, with its aliases written out: each line of ten aliases may multiply them by ten.
_MOST_VALUES = 100_000


def load_yaml(text: str, source: object = "a YAML text") -> object:
    """Return the values of a YAML text; raise an `InputError` for endless aliases, and errors of YAML as they are."""
    try:
        values = yaml.safe_load(text)
        count = _count(values, {})
    except RecursionError:
        raise InputError(f"{source}: nested too deeply; write it flat") from None
    if count > _MOST_VALUES:
        raise InputError(f"{source}: more than {_MOST_VALUES:,} values, or an alias in itself; omit aliases")
    return values


def load_mapping(file: Path) -> PlainDict:
    """Return the mapping in a YAML or JSON file; raise an `InputError` that names the file if it is none."""
    try:
        contents = load_yaml(existing_file(file).read_text(encoding="utf-8"), file)
    except InputError:
        raise
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file}: no YAML ({reason(error)})") from error
    if not isinstance(contents, dict):
        raise InputError(f"{file}: must be a mapping")
    return contents


def parsed(text: str, source: object) -> object:
    """Return the values of a YAML text, see `load_yaml`; None if it is none."""
    try:
        return load_yaml(text, source)
    except InputError:
        raise
    except (yaml.YAMLError, ValueError):
        return None


def _count(value: object, counts: dict[int, float]) -> float:
    """Return the number of values in a value; each container is counted once, with its aliases written out."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if parts and id(value) not in counts:
        counts[id(value)] = math.inf  # until it is known: it may contain itself
        counts[id(value)] = 1.0 + sum(_count(part, counts) for part in parts)
    return counts.get(id(value), 1)
