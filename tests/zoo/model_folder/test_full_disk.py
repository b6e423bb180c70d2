"""Files on a full disk: one line, and nothing half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from datamodules.core.errors import InputError
from tests.faults import disks
from tests.zoo.conftest import Zoo, fill_disk, refusal
from zoo.cli import main
from zoo.model_folder.state import write_values
from zoo.training.checkpoints import write_contents


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    # PyTorch's writer reports a position of its own in place of the full disk.
    path = tmp_path / "checkpoints" / "last.ckpt"
    path.parent.mkdir()
    write_contents({"a": torch.ones(3)}, path)
    fill_disk(monkeypatch, path.name)
    contents = {"weights": torch.zeros(size), "more": [torch.zeros(3) for _ in range(50)]}
    with pytest.raises(InputError, match=r"last\.ckpt: the disk is full\. .* another --run_dir"):
        write_contents(contents, path)
    assert list(path.parent.iterdir()) == [path]
    assert torch.equal(torch.load(path, weights_only=True)["a"], torch.ones(3))


def test_fitted_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, contents: write(Path("/dev/full"), contents))
    with pytest.raises(InputError, match=r"weights-.*\.safetensors: the disk is full"):
        write_values(tmp_path / "fitted", "weights", {"a": 1})
    assert list((tmp_path / "fitted").iterdir()) == []


def test_predictions(
    trained_run: Path, tmp_path: Path, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("an apple\n")
    fill_disk(monkeypatch, "out.jsonl")
    result = zoo_command("predict", f"--ckpt_path={trained_run}", "--input=texts.txt", "--output=out.jsonl")
    refusal(result, "out.jsonl: the disk is full", "another --output")
    assert not (tmp_path / "out.jsonl").exists()


def test_an_export_to_a_small_file_system(
    trained_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not disks.can_mount():
        pytest.skip("this machine allows no mount")
    folder, child = tmp_path / "small", os.fork()
    if child == 0:  # whose mounts are its own
        left = ["no refusal"]
        try:
            if disks.mount(folder, 64 << 10) and main(["export", str(trained_run), str(folder / "new")]) == 2:
                left = [path.name for path in folder.iterdir() if path.suffix != ".lock"]
        finally:
            os._exit(len(left))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert "the disk is full" in line
