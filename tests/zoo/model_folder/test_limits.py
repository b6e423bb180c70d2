"""Input that would take for ever, or all memory."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

import zoo
from datamodules.core import files, storage
from datamodules.core.arrays import map_array
from datamodules.core.errors import DamagedError, InputError
from datamodules.core.files import binary_lines
from datamodules.corpora.table import read_table
from tests.zoo.conftest import Zoo, fit_options, refusal, renew_manifest, write_table


def test_a_manifest_names_a_device_or_a_pipe_and_is_one(exported: Path) -> None:
    endless, manifest = exported / "endless", exported / storage.MANIFEST
    endless.symlink_to("/dev/zero")
    listed = {**storage.load_json(manifest)["files"], "endless": {"bytes": 0, "xxh3": "0"}}
    storage.set_key(manifest, "files", listed)
    with pytest.raises(InputError, match=r"endless: is a link to /dev/zero"):
        zoo.load(exported)
    for pipe in (endless, manifest):
        pipe.unlink()
        os.mkfifo(pipe)
        with pytest.raises(InputError, match=rf"{pipe.name}: is neither a file nor a folder"):
            zoo.load(exported)
        pipe.unlink()
        pipe.touch()


def test_deep_json(exported: Path) -> None:
    (exported / storage.MANIFEST).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(DamagedError, match=r"manifest\.json: damaged"):
        zoo.load(exported)


@pytest.mark.parametrize("version", [10**9, 1e9, -1, "1", None])
def test_a_version_that_no_memory_has(exported: Path, version: object) -> None:
    file = exported / "state.json"
    storage.set_key(file, "memory", {**storage.load_json(file)["memory"], "version": version})
    with pytest.raises(InputError, match=r"^[^\n]*memory[^\n]*$"):
        zoo.load(exported)


def test_a_header_that_announces_terabytes(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    with file.open("wb") as out:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**38,)}
        np.lib.format.write_array_header_1_0(out, header)
        out.write(bytes(400))
    with pytest.raises(DamagedError, match=r"a\.npy: damaged"):
        map_array(file, np.float32)


@pytest.mark.parametrize(
    ("size", "shape", "offsets"),
    [(2**62, [4], [0, 16]), (None, [10**18], [0, 16]), (None, [0, 2**64 - 1], [0, 0]), (None, [2], [8, 16])],
    ids=["header", "shape", "empty shape", "overlap"],
)
def test_weights_that_announce_what_they_lack(
    size: int | None, shape: list[int], offsets: list[int], exported: Path
) -> None:
    tensors = {"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
    if offsets[0]:
        tensors["b"] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    header, file = json.dumps(tensors).encode(), exported / "model.safetensors"
    file.write_bytes((size or len(header)).to_bytes(8, "little") + header + bytes(offsets[1]))
    renew_manifest(exported)
    with pytest.raises(InputError, match=r"^[^\n]*model\.safetensors: damaged[^\n]*copy or download"):
        zoo.load(exported)


def test_a_table_that_unpacks_to_far_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"text,label\n" + b"a,b\n" * 1_000_000))
    assert files.MOST_UNPACKED <= 1 << 28  # more takes minutes
    monkeypatch.setattr(files, "MOST_UNPACKED", 1 << 20)
    with pytest.raises(InputError, match=r"bomb\.csv\.gz: unpacks to more than .* 100 times its size"):
        read_table(bomb)
    plain = tmp_path / "plain.csv"
    plain.write_bytes(gzip.decompress(bomb.read_bytes()))
    assert sum(1 for _ in binary_lines(plain)) == 1_000_001


def test_a_parquet_table_that_unpacks_to_far_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    monkeypatch.setattr(files, "MOST_UNPACKED", 1 << 20)
    bomb = tmp_path / "bomb.parquet"
    pandas.DataFrame({"text": ["a text of some words " * 20] * 50_000, "label": "x"}).to_parquet(bomb)
    with pytest.raises(InputError, match="unpacks to more than"):
        read_table(bomb)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    file = tmp_path / "line.jsonl"
    file.write_bytes(b'{"text": "' + b"a" * (3 << 20))
    with pytest.raises(InputError, match=r"line 1 has more than 1 MB; split it"):
        read_table(file)


def test_too_many_labels(zoo_command: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datamodules.classification.MANY_LABELS", 50)
    table = write_table(tmp_path / "ids.csv", [(f"text {i}", f"label {i}") for i in range(80)])
    refusal(zoo_command(*fit_options(table)), "80 labels of 80 rows", "data.label_column")
