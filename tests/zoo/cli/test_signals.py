"""Ends of commands by a signal, a full disk, or a loss that is not finite."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file

from tests.datamodules.checks import files_of
from tests.zoo.conftest import Fit, Zoo, done, fit_options, refusal, renew_manifest, resume
from tests.zoo.processes import DDP

#: Seconds.
PATIENCE = 600


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`zoo ...` in a process of its own, which leaves none behind, however the test ends."""
    command = [sys.executable, "-m", "zoo", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets its background jobs ignore it, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a process has written a file; on a busy machine its start alone takes a minute."""
    end = time.monotonic() + PATIENCE
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"no {file}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "line", "options"),
    [
        (signal.SIGTERM, 143, "zoo: ended by SIGTERM", []),
        (signal.SIGINT, 130, "zoo: interrupted", []),
        (signal.SIGTERM, 143, "zoo: ended by SIGTERM", DDP),
    ],
)
def test_a_signal_ends_a_fit(number: int, code: int, line: str, options: list[str], train_csv: Path) -> None:
    with started(*fit_options(train_csv, "--trainer.max_epochs=100000", *options)) as process:
        wait_for(Path("run/checkpoints/last.ckpt"), process)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)  # until all that hold its output have ended
    assert process.returncode == code, err
    assert [each for each in err.splitlines() if "zoo" in each or "Error" in each] == [line]
    assert not Path("run/summary.json").exists()


def test_two_fits_in_one_folder_do_not_mix(copied_run: Path, zoo_command: Zoo, train_csv: Path) -> None:
    before = files_of(copied_run)
    resumed = ["fit", "--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=2"]
    with FileLock(copied_run / ".lock"):  # as another process holds it
        for command in (fit_options(train_csv), resumed):
            refusal(zoo_command(*command), "--run_dir run: another `zoo fit` works there")
        assert files_of(copied_run) == before


def test_only_a_run_is_moved_aside(zoo_command: Zoo, train_csv: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "checkpoints").mkdir(parents=True)
    (home / "config.yaml").write_text("theme: dark\n")
    before = files_of(tmp_path)
    refusal(zoo_command(*fit_options(train_csv, "--run_dir", home)), "holds files, but no run")
    assert files_of(tmp_path) == before


def test_a_run_that_one_is_in_is_not_moved_aside(
    copied_run: Path, zoo_command: Zoo, train_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(copied_run)
    monkeypatch.chdir(copied_run / "checkpoints")
    refusal(zoo_command(*fit_options(train_csv, "--run_dir=..")), "the folder that you are in")
    assert files_of(copied_run) == before


def test_checkpoints_are_written_beside_their_place(
    fit: Fit, zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The temporary folder may be on another disk; files of a killed process are deleted."""
    replaced: list[tuple[Path, Path]] = []
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda file, target: replaced.append((file, target)) or replace(file, target)
    )
    run = fit("run")
    kept = {target.name: file.parent for file, target in replaced if target.suffix == ".ckpt"}
    assert kept == {"best.ckpt": run / "checkpoints", "last.ckpt": run / "checkpoints"}
    stale = run / "checkpoints" / ".last.ckpt.12345"
    stale.write_text("half")
    resume(zoo_command, run, max_epochs=2)
    assert not stale.exists()


@pytest.mark.parametrize("every", [1, 50])
def test_a_training_that_diverges_is_one_line(every: int, zoo_command: Zoo, train_csv: Path) -> None:
    options = ["--model.optimizer.lr=1e30", "--trainer.max_epochs=9", f"--trainer.log_every_n_steps={every}"]
    result = zoo_command(*fit_options(train_csv, *options))
    refusal(result, "training diverged", " in epoch 1, ", "--model.optimizer.lr")
    assert not Path("run/summary.json").exists()
    assert "NaN" not in "".join(path.read_text() for path in Path("run").rglob("*.json"))


def test_a_model_of_nan_weights_predicts_nothing(trained_run: Path, zoo_command: Zoo, test_csv: Path) -> None:
    file = Path(shutil.copytree(trained_run / "model", "nan"), "model.safetensors")
    weights = {name: torch.full_like(value, torch.nan) for name, value in load_file(file).items()}
    save_file(weights, file)
    renew_manifest(Path("nan"))
    result = zoo_command("predict", "--ckpt_path=nan", "--input", test_csv)
    assert result.code == 2
    assert "nan: no finite scores" in result.err
    # Its scores are JSON that every reader takes.
    done(zoo_command("test", "--ckpt_path=nan", "--data.test_file", test_csv, "--output=m.json"))
    scores = json.loads(Path("m.json").read_text(), parse_constant=pytest.fail)
    assert scores["loss"] is None
    assert scores["rows"] == 31


@pytest.mark.parametrize("command", ["predict", "test"])
def test_an_output_replaces_nothing_but_a_file(
    command: str, trained_run: Path, zoo_command: Zoo, test_csv: Path
) -> None:
    description = trained_run / "model" / "model.json"
    source = {"predict": "--input", "test": "--data.test_file"}[command]
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("link").symlink_to(test_csv)
    before = files_of(Path("folder")), test_csv.read_bytes(), description.read_bytes()
    for output, words in {
        "folder": "is a folder",
        "pipe": "is a device or a pipe",
        "/dev/null": "is a device or a pipe",
        "": "names no file",
        "..": "is a folder",
        str(test_csv): "which this command reads",
        "link": "which this command reads",
        str(description): "which this command reads",
        f"{test_csv}/below.json": "a file is in its way",
        "x" * 300: "too long",
        "a\0b": "names no file",
    }.items():
        result = zoo_command(command, "--ckpt_path", trained_run, source, test_csv, "--output", output)
        assert (result.code, result.out) == (2, ""), (output, result)
        assert words in result.err, (output, result.err)
        assert len(result.err.splitlines()) == 1
        assert len(result.err) < 600
    assert (files_of(Path("folder")), test_csv.read_bytes(), description.read_bytes()) == before
    assert Path("pipe").is_fifo()
