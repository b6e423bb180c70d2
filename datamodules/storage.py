"""Folders that are either whole or absent: how every cache of the project reaches the disk.

A folder is built beside its final place, synced, given a `manifest.json` that lists its files with their
sizes and checksums, and renamed. A reader trusts a folder only if the manifest carries the fingerprint it
asks for and every file is as it was written.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock

from datamodules.errors import InputError

MANIFEST = "manifest.json"
#: Name and fingerprint of a folder in a cache.
Part: TypeAlias = tuple[str, str]


def fingerprint_of(description: Mapping[str, Any]) -> str:
    """sha256 (hex) of a mapping of plain values, independent of the order of its keys."""
    return sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def cache_folder(cache_dir: str | Path | None) -> Path:
    """The folder for everything that can be built again.

    Args:
        cache_dir: the user's choice; None means `$ZOO_CACHE_DIR`, or else `~/.cache/memory-zoo`.
    """
    chosen = cache_dir or os.environ.get("ZOO_CACHE_DIR") or Path.home() / ".cache" / "memory-zoo"
    return Path(chosen).expanduser().resolve()


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the folder for one process; others wait. The system lets go of it when the holder dies."""
    held = FileLock(folder.parent / f".{folder.name}.lock")
    with named_disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        held.acquire()
    try:
        yield
    finally:
        held.release()


@contextmanager
def named_disk_errors(folder: Path, option: str = "--data.cache_dir") -> Iterator[None]:
    """Turn a full or read-only disk into one line that names the folder, and the option that chooses it."""
    try:
        yield
    except OSError as error:
        # numpy's short writes carry no error number.
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "requested and" in str(error):
            raise InputError(
                f"{folder}: the disk is full. Free some space or choose another {option}, then run"
                " the same command again; what is done is kept"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(f"{folder}: no permission to write. Choose another {option}") from error
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            raise InputError(
                f"{folder}: can't be made, a file is in its way. Choose another {option}"
            ) from error
        raise


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Write a file: yields a temporary path beside it, which becomes `path` when the block ends well.

    So a reader finds the old file or the new one, never a part.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, contents: Any) -> None:
    """Write plain values as a JSON file, in one step (see `new_file`); what is no finite number becomes null."""
    with new_file(path) as partial:
        partial.write_text(json.dumps(_finite(contents), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """Plain values of which JSON knows all: it has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def crc32_of(path: Path) -> int:
    """The checksum of a file's contents."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def finish_folder(partial: Path, folder: Path, fingerprint: str, **facts: Any) -> None:
    """Sync the files of `partial`, write its manifest and rename it to `folder`.

    Args:
        partial: the built folder, on the same file system as `folder`.
        folder: its final place; a damaged or outdated folder there is replaced.
        fingerprint: what the folder holds, see `check_folder`.
        facts: further plain values for the manifest.
    """
    files = {}
    for path in sorted(partial.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
    manifest = {"fingerprint": fingerprint, "files": files, **facts}
    with (partial / MANIFEST).open("w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


@contextmanager
def new_folder(folder: Path, fingerprint: str, **facts: Any) -> Iterator[Path]:
    """Build a folder: yields a temporary one, which becomes `folder` when the block ends well.

    The caller holds a `lock`, so what a killed process left there is nobody's and is deleted.
    """
    partial = folder.parent / f".{folder.name}.partial"
    with named_disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            finish_folder(partial, folder, fingerprint, **facts)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def check_folder(folder: Path, fingerprint: str | None = None, *, contents: bool = False) -> dict[str, Any]:
    """The manifest of a whole folder.

    Args:
        folder: a folder that `finish_folder` made.
        fingerprint: what the folder must hold; None takes any.
        contents: compare checksums too (about a second per GB) and not only sizes.

    Raises:
        InputError: missing, unfinished, of another fingerprint, or a file of it is missing or damaged.
    """
    again = "delete the folder and run the command again to rebuild it"
    path = folder / MANIFEST
    if not path.exists():
        state = "is unfinished (it has no manifest.json)" if folder.exists() else "does not exist"
        raise InputError(f"{folder}: {state}; {again}" if folder.exists() else f"{folder}: {state}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        files = [(folder / name, facts["bytes"], facts["crc32"]) for name, facts in manifest["files"].items()]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged; {again}") from error
    if fingerprint is not None and manifest.get("fingerprint") != fingerprint:
        raise InputError(f"{folder}: was built from other texts or settings; {again}")
    for file, size, checksum in files:
        found = file.stat().st_size if file.exists() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise InputError(f"{file}: damaged ({what}); {again}")
        if contents and crc32_of(file) != checksum:
            raise InputError(f"{file}: damaged (its checksum has changed); {again}")
    return manifest


def is_whole(folder: Path, fingerprint: str) -> bool:
    """True if `check_folder` accepts the folder and its contents; False if there is none. Damage raises."""
    if not folder.exists():
        return False
    check_folder(folder, fingerprint, contents=True)
    return True


def are_whole(cache: Path, parts: Iterable[Sequence[str]]) -> bool:
    """False if a folder of a cache was deleted (it is made again); damage raises.

    Args:
        cache: where the folders are.
        parts: name, or path, and fingerprint of each.
    """
    return all(is_whole(cache / part[0], part[1]) for part in parts)


def prepared_folder(cache: Path, kind: str, fingerprint: str, save: Callable[[Path], object]) -> Part:
    """A folder of a cache that `save` fills, unless it is there already.

    Args:
        cache: where it goes.
        kind: how its name begins.
        fingerprint: of its contents.
        save: writes files into a folder.
    """
    folder = cache / f"{kind}-{fingerprint[:16]}"
    with lock(folder):
        if not is_whole(folder, fingerprint):
            with new_folder(folder, fingerprint) as partial:
                save(partial)
    return folder.name, fingerprint


def file_state(path: str | Path | None) -> list[int] | None:
    """Size and time of a file: a changed file makes the prepared data anew."""
    if path is None or not Path(path).exists():
        return None
    stat = Path(path).stat()
    return [stat.st_size, stat.st_mtime_ns]
