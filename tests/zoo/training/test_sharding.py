"""FSDP: weights sharded over two processes, with the same result as whole ones."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.zoo.conftest import SMALL, pair_rows, write_pairs
from tests.zoo.processes import DDP, zoo_process
from zoo.cli.configs import find
from zoo.saving.saved_model import SavedModel

FRAGMENT = "trainer/fsdp"


def fsdp(devices: int, **strategy: object) -> Path:
    """The example's configuration for processes on this machine."""
    fragment = yaml.safe_load(find(FRAGMENT).read_text())
    cpu = {"accelerator": "cpu", "devices": devices, "precision": "32-true", "enable_model_summary": True}
    fragment["trainer"] |= cpu
    fragment["trainer"]["strategy"]["init_args"] |= {"data_parallel_size": devices} | strategy
    path = Path("fsdp.yaml").absolute()
    path.write_text(yaml.safe_dump(fragment))
    return path


def fit_sharded(*options: object) -> None:
    """Run `zoo fit` as a user does: Lightning starts the second process from the command line."""
    command = [sys.executable, "-m", "zoo", "fit", "--config", str(fsdp(2)), *map(str, options)]
    folder = str(Path(__file__).parents[3])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FSDP" in done.stdout  # PyTorch's name for the sharded network in Lightning's summary


def figures(run: str) -> list[dict[str, float]]:
    """The logged values, without times."""
    with Path(run, "metrics.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    times = ("train/examples_per_second", "train/waiting_share")
    return [{name: value for name, value in row.items() if name not in times} for row in rows]


def weights_of(run: str) -> dict[str, torch.Tensor]:
    return SavedModel.open(f"{run}/checkpoints/last.ckpt").checkpoint.weights


@pytest.fixture
def matcher(tiny_bert: Path, tmp_path: Path) -> list[object]:
    """A cross-encoder on pairs."""
    pairs = write_pairs(tmp_path / "pairs.tsv", pair_rows(40, seed=1))
    return [
        "--model=TransformerMatcher", "--model.transformer", tiny_bert, "--model.optimizer.lr=0.01",
        "--model.dropout=0", "--data=MatchingDataModule", "--data.train_file", pairs, "--data.tokenizer", tiny_bert,
        "--data.first_column=first", "--data.second_column=second", "--data.label_column=label",
        "--data.validation_split=0.3", "--data.batch_size=8", "--seed_everything=1", "--trainer.log_every_n_steps=1",
        "--trainer.gradient_clip_val=1", "--trainer.callbacks+=GradientNorms",
    ]  # fmt: skip


@pytest.mark.slow
def test_sharded_weights_equal_whole_ones(matcher: list[object]) -> None:
    fit_sharded(*matcher, "--trainer.max_epochs=1", "--run_dir=parts")
    last = "parts/checkpoints/last.ckpt"
    fit_sharded(*matcher, "--trainer.max_epochs=2", "--run_dir=parts", "--ckpt_path", last)
    zoo_process("fit", *matcher, "--trainer.max_epochs=2", "--run_dir=whole", *DDP)
    for fragment, run in ((["--config", fsdp(1)], "whole"), (DDP, "parts")):
        resumed = ["--trainer.max_epochs=3", "--ckpt_path", f"{run}/checkpoints/last.ckpt", "--run_dir=other"]
        assert "resume with the same trainer.strategy" in zoo_process(
            "fit", *fragment, *matcher, *resumed, code=2
        )
    parts, whole = figures("parts"), figures("whole")
    assert any("train/gradient_norm" in row for row in whole)
    assert [row.keys() for row in parts] == [row.keys() for row in whole]
    for row, expected_row in zip(parts, whole, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-3, abs=1e-4)
    weights, expected = (weights_of(run) for run in ("parts", "whole"))
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_adapters_and_a_warm_start_of_sharded_weights(matcher: list[object]) -> None:
    zoo_process("fit", *matcher, "--trainer.max_epochs=1", "--run_dir=first")
    start = "first/checkpoints/last.ckpt"
    options = ["--model.init_from", start, "--model.lora_rank=2", "--trainer.max_epochs=1"]
    fit_sharded(*matcher, *options, "--run_dir=parts")
    before, after = (weights_of(run) for run in ("first", "parts"))
    name = "encoder.layer.0.attention.self.query"
    (old,) = (weight for key, weight in before.items() if key.endswith(f"{name}.weight"))
    (kept,) = (weight for key, weight in after.items() if key.endswith(f"{name}.base_layer.weight"))
    (adapter,) = (weight for key, weight in after.items() if key.endswith(f"{name}.lora_B.default.weight"))
    assert torch.equal(old, kept)
    assert bool(adapter.abs().sum() > 0)


@pytest.mark.slow
def test_batches_with_different_numbers_of_memories(tiny_bert: Path, train_csv: Path) -> None:
    """Two processes call each layer equally often, or they would wait for each other without end."""
    fit_sharded(
        "--model=KNNBiLSTM", "--model.transformer", tiny_bert, "--data=ClassificationDataModule",
        "--data.train_file", train_csv, "--data.num_memories=3", "--data.batch_size=8",
        "--trainer.max_epochs=1", "--run_dir=run",
    )  # fmt: skip
    assert len(figures("run")) > 0


@pytest.mark.parametrize(
    ("options", "strategy", "message"),
    [
        ([], {"save_distributed_checkpoint": True}, "set save_distributed_checkpoint to false"),
        (["--trainer.callbacks+=Charts"], {}, "omit the callback"),
    ],
)
def test_unsupported_options_are_refused(
    matcher: list[object], options: list[str], strategy: dict[str, object], message: str
) -> None:
    config = fsdp(1, **strategy)
    printed = zoo_process("fit", "--config", config, *matcher, *options, "--run_dir=run", code=2)
    (line,) = [line for line in printed.splitlines() if line.startswith("zoo: error: ")]
    assert line.startswith("zoo: error: trainer.strategy=ModelParallelStrategy")
    assert message in line


def test_a_model_without_a_transformer_is_not_sharded(train_csv: Path) -> None:
    printed = zoo_process(
        "fit", "--config", fsdp(1), *SMALL, "--data.train_file", train_csv, "--run_dir=run", code=2
    )
    assert "this KNNBiLSTM has none; use ddp" in printed
