"""Folders that are either whole or absent; `manifest.json` has their files' sizes and checksums."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import xxhash
from filelock import FileLock, Timeout

from datamodules.core.errors import DamagedError, InputError
from datamodules.core.types import PlainDict, mapped

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
#: Files of a whole folder that may change: no part of its manifest.
CHANGING = ("state.json", "README.md")
#: The advice for a damaged folder that can be built again.
REBUILD = "delete the folder and run the command again to rebuild it"
#: Name and fingerprint of a folder in a cache.
Part: TypeAlias = tuple[str, str]


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Return the user's choice of a cache; None means `$ZOO_CACHE_DIR`, or else `~/.cache/memory-zoo`."""
    try:
        chosen = cache_dir or os.environ.get("ZOO_CACHE_DIR") or "~/.cache/memory-zoo"
        return Path(chosen).expanduser().resolve()
    except RuntimeError:  # as in containers; a prediction, which writes nothing, works
        return Path(os.devnull, "no home folder")


def prepared_folder(cache: Path, kind: str, fingerprint: str, save: Callable[[Path], object]) -> Part:
    """Build a folder of a cache, named by its kind and fingerprint, unless it is whole; see `build_folder`."""
    folder = cache / f"{kind}-{fingerprint[:16]}"
    build_folder(folder, fingerprint, save)
    return folder.name, fingerprint


def build_folder(folder: Path, fingerprint: str, save: Callable[[Path], object]) -> None:
    """Let `save` write the files of a folder unless it is whole; refuse a folder with another fingerprint."""
    with lock(folder):
        if not is_whole(folder, fingerprint):
            with new_folder(folder, fingerprint) as partial:
                save(partial)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Reserve a folder for this process; others wait. The system frees the lock when its holder dies."""
    with named_disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        file_lock = lock_file(folder.parent / f".{folder.name}.lock")
        file_lock.acquire()
    try:
        replaced = _replaced(folder)  # by a process that was killed, see `finish_folder`
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
        yield
    finally:
        file_lock.release()


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def lock_file(path: Path) -> FileLock:
    """Make the file of a lock, and return the lock; a link in its place is refused: its target would be emptied."""
    # FileLock itself would retry for ever where no file can be created.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return FileLock(path)


@contextmanager
def new_folder(folder: Path, fingerprint: str, like: Path | None = None, **facts: object) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` when the block ends well. The caller holds the `lock`.

    The checksums of files that are hard links to those of the folder `like` are taken from its manifest.
    """
    partial = folder.parent / f".{folder.name}.partial"
    with named_disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            finish_folder(partial, folder, fingerprint, like, facts)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def finish_folder(partial: Path, folder: Path, fingerprint: str, like: Path | None, facts: PlainDict) -> None:
    """Sync the files of `partial`, write their manifest, with the facts, and replace `folder` by `partial`."""
    files = {}
    known = {} if like is None else check_folder(like)["files"]
    for path in sorted(partial.iterdir()):
        if path.is_dir() or path.name in CHANGING or path.name.startswith("."):
            continue  # a memory, for example, has its own manifest
        if like is not None and path.name in known and path.samefile(like / path.name):
            files[path.name] = known[path.name]
            continue
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "xxh3": checksum_of(path)}
    with (partial / MANIFEST).open("w") as file:
        json.dump(with_checksum({"fingerprint": fingerprint, "files": files, **facts}), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync(partial)
    # A process may be killed at any line: until the new folder is in its place, the old one is kept.
    if folder.is_dir():
        folder.rename(_replaced(folder))
    partial.rename(folder)
    sync(folder.parent)
    shutil.rmtree(_replaced(folder), ignore_errors=True)


def delete(folder: Path) -> None:
    """Delete a folder, hidden first: one that is deleted in part is not taken for a whole one."""
    hidden = folder.with_name(f".{folder.name}.deleted")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def delete_leftovers(parent: Path) -> list[str]:
    """Delete the hidden folders that killed processes have left: replaced, partly deleted and unfinished ones.

    Returns the names of previews that were killed.
    """
    previews = []
    for hidden in [*parent.glob(".*.replaced"), *parent.glob(".*.deleted")]:
        shutil.rmtree(hidden)
    for hidden in [*parent.glob(".*.partial")]:
        file = parent / f"{hidden.stem}.lock"
        with suppress(Timeout), lock_file(file).acquire(timeout=0):  # else another process is writing it
            shutil.rmtree(hidden, ignore_errors=not hidden.exists())
            if hidden.stem.startswith(".preview-"):  # of a name that is not used again
                file.unlink(missing_ok=True)
                previews.append(hidden.stem[1:])
    return previews


def link(source: str | Path, target: str | Path) -> None:
    """Make a hard link to a file, or a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)


def sync(path: Path) -> None:
    """Wait until a file, or the names of the files in a folder, are on the disk: they survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_whole(folder: Path, fingerprint: str) -> bool:
    """Return whether a folder exists and is undamaged; raise an `InputError` if it has another fingerprint."""
    try:
        check_folder(folder, fingerprint, contents=True, advice="it is built again")
    except DamagedError as damage:
        if folder.exists():  # else it is missing, or another process deletes it meanwhile
            log.warning("%s", damage)
        return False
    return True


def check_folder(
    folder: Path, fingerprint: str | None = None, *, contents: bool = False, advice: str = REBUILD
) -> PlainDict:
    """Return the manifest of a folder; `contents` compares checksums (at the speed of the disk), not only sizes.

    Raises a `DamagedError` if the folder is unfinished or damaged, an `InputError` if it is missing or another one.
    """
    if not folder.exists():
        raise DamagedError(f"{folder}: does not exist; {advice}")
    if not (folder / MANIFEST).exists():
        raise DamagedError(f"{folder}: is unfinished (it has no {MANIFEST}); {advice}")
    check_inside(folder)
    manifest = read_checked(folder / MANIFEST, advice)
    if not isinstance(manifest.get("fingerprint"), str) or not isinstance(manifest.get("files"), dict):
        raise DamagedError(f"{folder / MANIFEST}: damaged; {advice}")
    if fingerprint not in (None, manifest["fingerprint"]):
        raise InputError(f"{folder}: was built from other texts or settings; {advice}")
    check_files(folder, manifest, manifest["files"], advice, contents)
    return manifest


def check_files(
    folder: Path, manifest: PlainDict, names: Iterable[str], advice: str, contents: bool = True
) -> None:
    """Compare some files with the manifest of their folder, by checksums or sizes; raise a `DamagedError`."""
    for name in names:
        if damage := _damage(folder, name, manifest["files"].get(name), contents):
            raise DamagedError(f"{folder / name}: damaged ({damage}); {advice}")


def check_inside(folder: Path) -> None:
    """Refuse a folder that holds links to places outside, or anything but files and folders, at any depth.

    The links in the cache of the Hub's client are accepted: `snapshots/REVISION/FILE` leads to `blobs/HASH`.
    """
    own = folder.resolve()
    inside = [own, *(part.parent / "blobs" for part in own.parents if part.name == "snapshots")]
    pending = [str(own)]
    while pending:
        with suppress(FileNotFoundError):  # deleted meanwhile: another process may merge vectors
            for entry in os.scandir(pending.pop()):
                if entry.name.startswith(".") and entry.name.endswith(".partial"):
                    continue  # of another process: it is read by nobody, and may vanish
                # Only links are resolved, which takes longer than all else: a memory may have a thousand versions.
                if entry.is_symlink():
                    target = Path(os.path.realpath(entry.path))
                    if not any(map(target.is_relative_to, inside)):
                        problem = f"is a link to {target}, outside of {folder}"
                        raise InputError(f"{entry.path}: {problem}; replace it by the file, or delete it")
                elif entry.is_dir():
                    pending.append(entry.path)
                if not (entry.is_file() or entry.is_dir()):
                    raise InputError(f"{entry.path}: is neither a file nor a folder; delete it")


def with_checksum(values: PlainDict) -> PlainDict:
    """Return plain values with their checksum, which `read_checked` compares."""
    written = json.loads(json.dumps(mapped(_finite, values)))
    return {**written, "checksum": fingerprint_of(written)}


def read_checked(path: Path, advice: str) -> PlainDict:
    """Return the values of a JSON file that was written `with_checksum`; raise a `DamagedError` if it is damaged."""
    try:
        values = load_json(path)
    except ValueError as error:
        raise DamagedError(f"{path}: damaged; {advice}") from error
    if not isinstance(values, dict) or values.pop("checksum", None) != fingerprint_of(values):
        raise DamagedError(f"{path}: damaged; {advice}")
    return values


def update(path: Path, change: Callable[[PlainDict], PlainDict]) -> None:
    """Change a JSON file that `read_checked` reads, in one atomic step; processes wait for each other."""
    with lock(path):
        values = read_checked(path, "restore it from a backup") if path.exists() else {}
        write_json(path, with_checksum(change(values)))


def set_key(path: Path, key: str, value: object) -> None:
    """Set a key of such a file."""
    update(path, lambda values: {**values, key: value})


def load_json(path: Path) -> Any:
    """Return the values of a JSON file; raise a `ValueError` if it is none."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def _damage(folder: Path, name: str, facts: object, contents: bool) -> str | None:
    """Return the difference between a file of a folder and its manifest; None if they agree."""
    file = folder / name
    if "/" in name or "\0" in name:
        return "is outside of the folder"
    if not isinstance(facts, dict):
        return "has no size and checksum"
    if not file.exists():
        return "is missing"
    if not file.is_file():
        # To read a pipe or a device may take for ever.
        return "is no file"
    if (size := file.stat().st_size) != facts.get("bytes"):
        return f"has {size} bytes instead of {facts.get('bytes')}"
    if contents and checksum_of(file) != facts.get("xxh3"):
        return "its checksum has changed"
    return None


@contextmanager
def new_file(path: Path, option: str = "folder") -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` in one step when the block ends without an exception.

    A full disk is an `InputError` that names the option which chooses the path.
    """
    # Random, so that writers never share one.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        # An error that names another file is of what the block reads.
        if isinstance(error, OSError) and error.filename not in (None, partial, str(partial)):
            raise
        with named_disk_errors(path, option):
            raise


def write_text(path: Path, text: str, option: str = "folder") -> None:
    """Write a text file in UTF-8, in one step (see `new_file`)."""
    with new_file(path, option) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, contents: object, option: str = "folder") -> None:
    """Write plain values as a JSON file, in one step (see `new_file`). NaN and infinity become null."""
    write_text(path, json.dumps(mapped(_finite, contents), indent=1, allow_nan=False) + "\n", option)


def _finite(value: object) -> object:
    """Replace a number that JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fingerprint_of(description: Mapping[str, object]) -> str:
    """Return the sha256 (hex) of a mapping of plain values, independent of the order of its keys."""
    return sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def checksum_of(path: Path) -> str:
    """Return the XXH3-128 (hex) of a file: as fast as memory, against accidents and not against attackers."""
    checksum, block = xxhash.xxh3_128(), memoryview(bytearray(1 << 18))
    # One block for all reads: a new one for each costs more than the checksum.
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            checksum.update(block[:size])
    return checksum.hexdigest()


def contents_of(path: str | Path | None) -> str | dict[str, str] | None:
    """Return the checksum of a file, or of each file below a folder by its relative path; None if there is none."""
    if path is None:
        return None
    path = Path(path).absolute()
    if path.is_file():
        return _unchanged_checksum(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): _unchanged_checksum(file) for file in files}
    return None  # missing, or a pipe or device, which its reader refuses


def _unchanged_checksum(path: Path) -> str:
    """Return a file's checksum, read once in this process unless the file's times, size or inode change."""
    stat = path.stat()
    return _cached_checksum(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@lru_cache(maxsize=256)
def _cached_checksum(path: Path, *_: int) -> str:
    return checksum_of(path)


_FULL = "the disk is full. Free space or choose another {option}, then try again; finished parts are kept"
_FORBIDDEN = "no permission to write. Choose another {option}"
_FILE_IN_THE_WAY = "can't be made, a file is in its way. Choose another {option}"
_PROBLEMS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.ELOOP: "a link is in the way of a file of its own. Delete the link or choose another {option}",
    errno.EEXIST: _FILE_IN_THE_WAY,
    errno.ENOTDIR: _FILE_IN_THE_WAY,
    errno.ENOENT: "can't be made, nothing can be written there. Choose another {option}",
}

#: In messages of errors without a number: of numpy ("N requested and M written"), `copytree`, and safetensors.
_SIGNS_OF_FULL = ("requested and", f"[Errno {errno.ENOSPC}]", f"(os error {errno.ENOSPC})")


@contextmanager
def named_disk_errors(folder: Path, option: str = "folder (a cache: --data.cache_dir)") -> Iterator[None]:
    """Turn a full or read-only disk into an `InputError` that names the folder, and the option that chooses it."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number is None and any(sign in str(error) for sign in _SIGNS_OF_FULL):
            number = errno.ENOSPC
        if number not in _PROBLEMS:
            raise
        raise InputError(f"{folder}: {_PROBLEMS[number].format(option=option)}") from error
