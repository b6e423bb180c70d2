"""Files on a full disk: one line, and nothing half."""

from pathlib import Path

import pytest
import torch

from datamodules.core.errors import InputError
from tests.datamodules.corpus import in_processes
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


def test_export_to_a_small_disk(trained_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not disks.can_mount():
        pytest.skip("this machine allows no mount")

    def export() -> None:  # in a process whose mounts are its own
        folder = tmp_path / "small"
        assert disks.mount(folder, 64 << 10)
        assert main(["export", str(trained_run), str(folder / "new")]) == 2
        assert [path for path in folder.iterdir() if path.suffix != ".lock"] == []

    assert in_processes(1, export) == [0]
    (line,) = capfd.readouterr().err.splitlines()
    assert "the disk is full" in line
