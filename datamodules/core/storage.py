"""Folders that are either whole or absent: how every cache of the project reaches the disk.

A folder is built beside its final place, synced, given a `manifest.json` that lists its files with their
sizes and checksums, and renamed. A reader trusts a folder only if the manifest carries the fingerprint it
asks for and every file is as it was written; what a cache holds and is damaged is made again.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import xxhash
from filelock import FileLock

from datamodules.core.errors import DamagedError, InputError

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
#: What a user is told to do about a folder that can be made again.
REBUILD = "delete the folder and run the command again to rebuild it"
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
        Path(held.lock_file).touch()  # the lock would try for ever where no file can be made
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
        if error.errno == errno.ENOENT:
            raise InputError(
                f"{folder}: can't be made, nothing can be written there. Choose another {option}"
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
    write_text(path, json.dumps(_finite(contents), indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, in one step (see `new_file`)."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _finite(value: Any) -> Any:
    """Plain values of which JSON knows all: it has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def checksum_of(path: Path) -> str:
    """XXH3-128 (hex) of a file's contents: as fast as memory is read, against accidents and not against attackers."""
    checksum = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()


def _is_as_written(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a file has the checksum that the manifest notes."""
    if "crc32" not in facts:
        return bool(checksum_of(path) == facts["xxh3"])
    checksum = 0  # of a folder from before
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return bool(checksum == facts["crc32"])


@lru_cache(maxsize=256)
def _known_checksum(path: Path, state: tuple[int, ...]) -> str:
    """A file's checksum; a process reads it again when the file's times, size or place have changed."""
    del state
    return checksum_of(path)


def contents_of(path: str | Path | None) -> Any:
    """Identifies what a file, or all files below a folder, hold; None for what is not there.

    Sizes and times would not do: a copy that keeps its times, or a folder whose files are rewritten, shows
    neither.
    """
    if path is None or not Path(path).exists():
        return None
    place = Path(path).absolute()
    if place.is_dir():
        files = sorted(one for one in place.rglob("*") if one.is_file())
        return {str(one.relative_to(place)): contents_of(one) for one in files}
    if not place.is_file():
        return None  # a pipe, a device: whoever reads it says what is wrong with it
    stat = place.stat()
    return _known_checksum(place, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))


def finish_folder(partial: Path, folder: Path, fingerprint: str, **facts: Any) -> None:
    """Sync the files of `partial`, write their manifest and rename it to `folder`.

    Args:
        partial: the built folder, on the same file system as `folder`.
        folder: its final place; a damaged or outdated folder there is replaced.
        fingerprint: what the folder holds, see `check_folder`.
        facts: further plain values for the manifest.
    """
    files = {}
    for path in sorted(partial.iterdir()):
        if path.is_dir():
            continue  # a memory has a manifest of its own
        with path.open("rb") as file:
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "xxh3": checksum_of(path)}
    manifest = {"fingerprint": fingerprint, "files": files, **facts}
    manifest["checksum"] = fingerprint_of(manifest)
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


def check_folder(
    folder: Path,
    fingerprint: str | None = None,
    *,
    contents: bool = False,
    advice: str = REBUILD,
) -> dict[str, Any]:
    """The manifest of a whole folder.

    Args:
        folder: a folder that `finish_folder` made.
        fingerprint: what the folder must hold; None takes any.
        contents: compare checksums too (at the speed of the disk) and not only sizes.
        advice: what a user is told to do about it.

    Raises:
        DamagedError: unfinished, or a file of it is missing or damaged.
        InputError: missing, or of another fingerprint.
    """
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists():
            raise DamagedError(f"{folder}: is unfinished (it has no manifest.json); {advice}")
        raise InputError(f"{folder}: does not exist")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        described = {name: value for name, value in manifest.items() if name != "checksum"}
        is_from_before = all("crc32" in facts for facts in manifest["files"].values())
        if manifest.get("checksum") != fingerprint_of(described) and not is_from_before:
            raise ValueError("its checksum has changed")
        files = {folder / name: (facts["bytes"], facts) for name, facts in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}: damaged; {advice}") from error
    if fingerprint is not None and manifest.get("fingerprint") != fingerprint:
        raise InputError(f"{folder}: was built from other texts or settings; {advice}")
    for file, (size, facts) in files.items():
        found = file.stat().st_size if file.exists() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise DamagedError(f"{file}: damaged ({what}); {advice}")
        if contents and not _is_as_written(file, facts):
            raise DamagedError(f"{file}: damaged (its checksum has changed); {advice}")
    return manifest


def is_whole(folder: Path, fingerprint: str) -> bool:
    """True if `check_folder` accepts the folder and its contents; False if there is none, or it must be made again.

    Raises:
        InputError: the folder holds something else.
    """
    if not folder.exists():
        return False
    try:
        check_folder(folder, fingerprint, contents=True, advice="it is made again")
    except DamagedError as damage:
        log.warning("%s", damage)
        return False
    return True


def are_whole(cache: Path, parts: Iterable[Sequence[str]]) -> bool:
    """False if a folder of a cache was deleted or is damaged: it is made again.

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
