import bz2
import gzip
import lzma
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from datamodules.core.errors import InputError
from datamodules.core.files import binary_lines, existing_file, is_number

CONTENT = b"one\r\ntwo\n\nlast"
LINES = [b"one\r\n", b"two\n", b"\n", b"last"]
PACK = {"": bytes, ".gz": gzip.compress, ".GZ": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize("ending", PACK)
def test_compression_does_not_change_the_lines(tmp_path: Path, ending: str) -> None:
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
    with pytest.raises(InputError, match=r"holds 2 files; name one that it has, as in .*two\.ZIP/a"):
        next(binary_lines(tmp_path / "two.ZIP"))
    with pytest.raises(InputError, match=r"the archive has no such file; name .* as in .*one\.zip/a"):
        next(binary_lines(tmp_path / "one.zip" / "b"))
    # A folder may have the suffix of an archive.
    (tmp_path / "folder.zip").mkdir()
    (tmp_path / "folder.zip" / "a").write_bytes(CONTENT)
    assert list(binary_lines(tmp_path / "folder.zip" / "a")) == LINES


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zip"])
def test_damage_is_an_input_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match=f"a{ending}: truncated or damaged after line 0 "):
        list(binary_lines(path))
    if ending != ".zip":
        path.write_bytes(PACK[ending](CONTENT * 1000)[:-9])
        with pytest.raises(InputError, match=f"a{ending}: truncated or damaged after line "):
            list(binary_lines(path))


def test_errors_of_the_system_are_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"a\.gz: no such file"):
        list(binary_lines(tmp_path / "a.gz"))
    with pytest.raises(InputError, match="is a folder"):
        list(binary_lines(tmp_path))

    (tmp_path / "a.txt").touch()
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(InputError, match=r"a\.txt: can't be read \(Permission denied\)"):
        list(binary_lines(tmp_path / "a.txt"))


def test_existing_file(tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()
    assert existing_file(str(tmp_path / "train.csv")) == tmp_path / "train.csv"
    with pytest.raises(InputError, match=r"did you mean train\.csv\?"):
        existing_file(tmp_path / "trian.csv")
    with pytest.raises(InputError, match=r"zzz\.parquet: no such file; check the path"):
        existing_file(tmp_path / "zzz.parquet")
    with pytest.raises(InputError, match="nor folder"):
        existing_file(tmp_path / "nowhere" / "train.csv")


def test_numbers() -> None:
    assert all(map(is_number, ("1", "-2.5e3", "nan", "inf", b"7")))
    assert not any(map(is_number, ("", "one", "1,5", b"x")))
