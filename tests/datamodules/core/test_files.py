import bz2
import errno
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import IO, Any

import pytest
from fsspec.compression import compr

from datamodules.core.errors import InputError
from datamodules.core.files import DamagedFile, binary_lines, existing_file

CONTENT = b"one\r\ntwo\n\nlast"
LINES = [b"one\r\n", b"two\n", b"\n", b"last"]
PACK = {"": bytes, ".gz": gzip.compress, ".GZ": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize("ending", PACK)
def test_lines_are_the_same_however_they_are_packed(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACK[ending](CONTENT))
    assert list(binary_lines(path)) == LINES


def test_a_file_of_an_archive_is_named_like_one_of_a_folder(tmp_path: Path) -> None:
    for name, members in (("one.zip", ["a"]), ("two.ZIP", ["a", "b"])):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in members:
                archive.writestr(member, CONTENT)
    assert list(binary_lines(tmp_path / "one.zip")) == LINES
    assert list(binary_lines(tmp_path / "two.ZIP" / "b")) == LINES
    with pytest.raises(InputError, match="holds 2 files"):
        next(binary_lines(tmp_path / "two.ZIP"))
    # And a folder may be called like an archive.
    (tmp_path / "folder.zip").mkdir()
    (tmp_path / "folder.zip" / "a").write_bytes(CONTENT)
    assert list(binary_lines(tmp_path / "folder.zip" / "a")) == LINES


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_damage_is_one_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    for content in (b"something else", PACK[ending](CONTENT * 1000)[:-9]):
        path.write_bytes(content)
        with pytest.raises(DamagedFile):
            list(binary_lines(path))


def test_damage_is_known_whatever_the_decompressor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fsspec takes faster libraries where they are installed; their errors are their own."""

    class Broken(io.RawIOBase):
        def __init__(self, file: IO[bytes], mode: str) -> None:
            super().__init__()

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            raise RuntimeError("checksum")

    monkeypatch.setitem(compr, "gzip", Broken)
    (tmp_path / "a.gz").write_bytes(b"")
    with pytest.raises(DamagedFile, match="checksum"):
        list(binary_lines(tmp_path / "a.gz"))


def test_errors_of_the_system_are_not_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(binary_lines(tmp_path / "a.gz"))
    with pytest.raises(OSError, match="directory") as caught:
        list(binary_lines(tmp_path))
    assert caught.value.errno == errno.EISDIR


def test_existing_file(tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()
    assert existing_file(str(tmp_path / "train.csv")) == tmp_path / "train.csv"
    with pytest.raises(InputError, match=r"did you mean train\.csv\?"):
        existing_file(tmp_path / "trian.csv")
