"""One and two processes: the same digits."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from tests.dialogues import made_up, write_published
from tests.zoo.conftest import SMALL, read_json
from tests.zoo.processes import DDP, scores_of_one_and_two, zoo_process


def test_two_processes_train(train_csv: Path) -> None:
    printed = zoo_process(
        "fit", *SMALL, "--data.train_file", train_csv, "--trainer.max_epochs=3", "--run_dir=run", *DDP
    )
    assert re.search(r"^best val/accuracy \d.*\nrun folder: run$", printed, re.MULTILINE)
    assert "nothing to train" not in printed
    summary = read_json("run/summary.json")
    assert summary["processes"] == 2
    assert summary["steps"] == 9  # 72 rows in 5 batches: 3 a process, 3 times
    assert summary["metrics"]["val/rows"] == 18
    assert summary["best_score"] > 0.6
    checkpoints = [torch.load(f"run/checkpoints/{name}.ckpt", weights_only=True) for name in ("best", "last")]
    assert checkpoints[1]["global_step"] == 9
    assert not any(name.startswith("module.") for name in checkpoints[0]["state_dict"])
    assert yaml.safe_load(Path("run/config.yaml").read_text())["trainer"]["devices"] in (2, "2")
    assert not list(Path().glob("run.*"))  # the second process did not move the first one's folder


@pytest.mark.slow
def test_dialogues_in_two_processes() -> None:
    """Seven dialogues with different numbers of questions, in batches of 2."""
    train = write_published(Path("train.txt"), made_up(24, seed=24))
    test = write_published(Path("test.txt"), made_up(7, seed=7))
    zoo_process(
        "fit", "--model=HMN", "--model.word_size=8", "--data=DialogueDataModule", "--data.layout=hmn4qa",
        "--data.train_file", train, "--data.batch_size=3", "--trainer.max_epochs=2", "--run_dir=run", *DDP,
    )  # fmt: skip
    assert read_json("run/summary.json")["processes"] == 2
    one, two = scores_of_one_and_two("run", "--data.test_file", test, "--data.eval_batch_size=2")
    assert one["questions"] == sum(len(dialogue.questions) for dialogue in made_up(7, seed=7))
    assert one == two


def test_an_error_in_a_process_is_one_line() -> None:
    options = ["--data.train_file=gone.csv", "--run_dir=run", "--trainer.max_epochs=1"]
    printed = zoo_process("fit", *SMALL, *options, *DDP, code=2)
    # PyTorch may log that it stops the other process; only one of them prints the message.
    (line,) = [line for line in printed.splitlines() if "gone.csv" in line]
    assert line.startswith("zoo: error: gone.csv: no such file")
    assert "Traceback" not in printed


@pytest.mark.slow
def test_an_ensemble_in_two_processes(train_csv: Path, test_csv: Path) -> None:
    """All stages of a fit, then the table of a test in batches of unequal size."""
    small = [option for option in SMALL if not option.startswith("--model")]
    zoo_process(
        "fit", "--model=MemoryEnsemble", *small, "--data.train_file", train_csv,
        "--trainer.max_epochs=1", "--run_dir=run", *DDP,
    )  # fmt: skip
    assert read_json("run/summary.json")["processes"] == 2
    assert read_json("run/answer.json")["rows"][-1]["texts"] == 18
    one, two = scores_of_one_and_two("run", "--data.test_file", test_csv, "--data.eval_batch_size=5")
    assert one["answer"]["rows"][-1]["texts"] == 31
    assert one == two
