"""A kind of data in one file of the user's, through every command."""

from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.zoo.conftest import (
    COMMON_WORDS,
    QUIET_TRAINER,
    Zoo,
    done,
    python,
    read_csv,
    read_json,
    read_jsonl,
    write_table,
    written_scores,
)
from tests.zoo.examples import EXAMPLES, imported
from tests.zoo.processes import DDP

PAGE = EXAMPLES / "your_own_kind" / "rating.py"
#: Word -> its share in the rating of a text.
WORTH = {"awful": -4.0, "poor": -2.0, "fair": 0.0, "good": 2.0, "superb": 4.0}
FIT = [
    "--model=MeanOfWords", "--model.word_size=8", "--model.optimizer=torch.optim.Adam",
    "--model.optimizer.lr=0.05", "--data=RatingDataModule", "--data.num_memories=3", "--data.batch_size=16",
    "--data.validation_split=0.25", *QUIET_TRAINER,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _page() -> None:
    imported(PAGE)


def write_ratings(path: Path, number: int, seed: int) -> Path:
    random, rows = np.random.default_rng(seed), []
    for _ in range(number):
        opinions = random.choice(list(WORTH), size=random.integers(1, 4))
        words = [*opinions, *random.choice(COMMON_WORDS, size=4)]
        rows.append((" ".join(map(str, words)), f"{5 + np.mean([WORTH[word] for word in opinions]):.2f}"))
    return write_table(path, rows, ("text", "rating"))


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_ratings(tmp_path / "train.csv", 120, seed=1)


def test_the_page_is_one_short_file() -> None:
    assert len(PAGE.read_text().splitlines()) < 120


def test_fit_validate_test_and_predict_with_a_memory(zoo_command: Zoo, train: Path, tmp_path: Path) -> None:
    done(zoo_command("fit", *FIT, "--data.train_file", train, "--trainer.max_epochs=8", "--run_dir=run"))
    validated = written_scores(zoo_command, "validate", "--ckpt_path=run", "--config=run/config.yaml")
    assert validated["r2"] == pytest.approx(read_json("run/summary.json")["best_score"])
    assert validated["r2"] > 0.5
    new = write_ratings(tmp_path / "test.csv", 40, seed=2)
    assert written_scores(zoo_command, "test", "--ckpt_path=run", "--data.test_file", new)["r2"] > 0.5

    predict = ["predict", "--ckpt_path=run", "--input", new]
    done(zoo_command(*predict, "--output=out.jsonl"))
    lines = read_jsonl("out.jsonl")
    truth = [float(row["rating"]) for row in read_csv(new)]
    assert np.corrcoef([line["rating"] for line in lines], truth)[0, 1] > 0.7

    # Memories count: with texts that were all rated 9, ratings increase.
    nines = write_table(tmp_path / "nines.csv", [(f"{word} text", "9") for word in WORTH], ("text", "rating"))
    done(zoo_command("index", "--file", nines, "--memory=nines", "--label_column=rating"))
    done(zoo_command(*predict, "--memory=nines", "--output=nines.jsonl"))
    higher = [line["rating"] for line in read_jsonl("nines.jsonl")]
    assert np.mean(higher) > np.mean([line["rating"] for line in lines]) + 0.1
    assert type(zoo.load("run").model).__name__ == "MeanOfWords"


@pytest.mark.slow
def test_one_and_two_processes_print_the_same_digits(zoo_command: Zoo, train: Path, tmp_path: Path) -> None:
    """31 rows in batches of 5: the repeated batch has weight 0. And a training on two processes."""
    done(zoo_command("fit", *FIT, "--data.train_file", train, "--trainer.max_epochs=1", "--run_dir=run"))
    table = write_ratings(tmp_path / "test.csv", 31, seed=4)
    given = ["test", "--ckpt_path=run", "--data.test_file", table, "--data.eval_batch_size=5"]
    one = written_scores(zoo_command, *given, "--trainer.accelerator=cpu")
    # The page as a program of its own: processes are forked from a young parent without threads.
    python(PAGE, *given, "--output=two.json", *DDP)
    assert one == read_json("two.json")
    python(PAGE, "fit", *FIT, "--data.train_file", train, "--trainer.max_epochs=1", "--run_dir=two", *DDP)
    assert read_json("two/summary.json")["processes"] == 2
