"""Options that differ from those of the run that is resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.zoo.conftest import Fit, Zoo, fit_options, last, refusal

_STEPS = ("--model.lr_scheduler=StepLR", "--model.lr_scheduler.step_size=1", "--model.lr_scheduler.gamma=0.5")
_PLATEAU = (
    "--model.lr_scheduler=pytorch_lightning.cli.ReduceLROnPlateau", "--model.lr_scheduler.monitor=val/loss",
    "--model.lr_scheduler.patience=0", "--model.lr_scheduler.threshold=0.9",
)  # fmt: skip


def optimizer_of(run: Path) -> dict[str, Any]:
    """The first parameter group of a run's optimizer."""
    group: dict[str, Any] = torch.load(last(run), weights_only=True)["optimizer_states"][0]["param_groups"][0]
    return group


def resume(fit: Fit, run: Path, *options: object) -> Path:
    return fit("resumed", "--trainer.max_epochs=3", "--ckpt_path", last(run), *options)


@pytest.fixture
def half(fit: Fit) -> Path:
    """A run of two epochs."""
    return fit("half", "--trainer.max_epochs=2", "--model.optimizer=Adam", "--model.optimizer.lr=0.01")


def test_other_settings_of_the_optimizer_are_used(
    fit: Fit, half: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resumed = optimizer_of(
        resume(fit, half, "--model.optimizer.lr=0.002", "--model.optimizer.weight_decay=0.1")
    )
    assert (resumed["lr"], resumed["weight_decay"]) == (0.002, 0.1)
    assert "lr 0.01 -> 0.002" in caplog.text
    assert "weight_decay 0.0 -> 0.1" in caplog.text


def test_options_that_are_not_repeated_are_those_of_the_run(
    fit: Fit, half: Path, zoo_command: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    result = zoo_command("fit", "--ckpt_path", last(half), "--trainer.max_epochs=3", "--run_dir=resumed")
    assert result.code == 0, result.err
    assert optimizer_of(Path("resumed"))["lr"] == 0.01
    assert "other settings" not in caplog.text
    config, before = (yaml.safe_load((run / "config.yaml").read_text()) for run in (Path("resumed"), half))
    assert config["trainer"] == {**before["trainer"], "max_epochs": 3}


def test_another_schedule_is_computed_from_the_first_epoch(fit: Fit, half: Path) -> None:
    # 0.01 in the first epoch, and half of it in each one after; the checkpoint has the rate of the next epoch.
    options = ("--model.optimizer=Adam", "--model.optimizer.lr=0.01", *_STEPS)
    whole = fit("whole", "--trainer.max_epochs=3", *options)
    resumed = resume(fit, half, *options)
    assert optimizer_of(resumed)["lr"] == optimizer_of(whole)["lr"] < 0.01


def test_other_settings_of_a_schedule_are_used(fit: Fit) -> None:
    options = ("--model.optimizer=Adam", "--model.optimizer.lr=0.01")
    half = fit("half", "--trainer.max_epochs=2", *options, *_STEPS)
    slower = (*options, *_STEPS, "--model.lr_scheduler.gamma=0.9")
    whole = fit("whole", "--trainer.max_epochs=3", *slower)
    assert optimizer_of(resume(fit, half, *slower))["lr"] == optimizer_of(whole)["lr"]
    assert optimizer_of(resume(fit, half, *options, *_STEPS))["lr"] < optimizer_of(whole)["lr"]


def test_a_plateau_keeps_its_reductions(fit: Fit) -> None:
    options = ("--model.optimizer=Adam", "--model.optimizer.lr=1e-4", *_PLATEAU)
    # No loss falls by 90 %, so each epoch after the first divides the rate by ten.
    half = fit("half", "--trainer.max_epochs=3", *options)
    before = optimizer_of(half)
    assert before["lr"] < before["initial_lr"]
    settings = (
        *options,
        "--model.optimizer.lr=1e-3",
        "--model.lr_scheduler.patience=9",
        "--trainer.max_epochs=4",
    )
    resumed = optimizer_of(resume(fit, half, *settings))
    assert resumed["lr"] == pytest.approx(10 * before["lr"])


def test_another_patience_is_used(fit: Fit) -> None:
    stopping = [
        "--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val/loss", "--trainer.callbacks.patience",
    ]  # fmt: skip
    half = fit("half", *stopping, 7)
    state = torch.load(last(resume(fit, half, *stopping, 5)), weights_only=True)["callbacks"]
    (patience,) = [each["patience"] for name, each in state.items() if re.match("EarlyStopping", name)]
    assert patience == 5


def test_another_start_is_refused(half: Path, zoo_command: Zoo, train_csv: Path) -> None:
    result = zoo_command(*fit_options(train_csv, "--ckpt_path", last(half), f"--model.init_from={half}"))
    refusal(result, "model.init_from", "started from no other model", "omit --ckpt_path")
