"""A model in a user's own file, through every command."""

from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests.zoo import test_models
from tests.zoo.conftest import QUIET_TRAINER, SMALL_DATA, Zoo, done, read_jsonl, refusal, written_scores
from tests.zoo.examples import EXAMPLES, imported
from zoo.tasks.model import Given

PAGE = EXAMPLES / "your_own_model" / "soft_vote.py"


@pytest.fixture(scope="module")
def page() -> Any:
    return imported(PAGE)


def test_the_page_is_one_short_file() -> None:
    assert len(PAGE.read_text().splitlines()) <= 100


@pytest.mark.usefixtures("page")
def test_fit_test_predict_share(zoo_command: Zoo, train_csv: Path, test_csv: Path, tmp_path: Path) -> None:
    options = [
        "--model=SoftVote", "--model.word_size=8", "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.05",
        *SMALL_DATA, "--data.train_file", train_csv, "--trainer.max_epochs=5", *QUIET_TRAINER, "--run_dir=run",
    ]  # fmt: skip
    done(zoo_command("fit", *options))
    scores = written_scores(zoo_command, "test", "--ckpt_path=run", "--data.test_file", test_csv)
    assert scores["accuracy"] > 0.8

    Path("texts.txt").write_text("a ripe apple\nsome gold\n")
    done(zoo_command("predict", "--ckpt_path=run", "--input=texts.txt", "--output=out.jsonl"))
    for line in read_jsonl("out.jsonl"):
        weights = [memory["weight"] for memory in line["memories"]]
        assert sum(weights) == pytest.approx(1)

    done(zoo_command("export", "run", "folder"))
    texts = ["a ripe apple", "rain"]
    exported, kept = zoo.load("folder").predict(texts), zoo.load("run").predict(texts)
    assert [each.probability for each in exported] == [each.probability for each in kept]


def test_a_wrong_option_is_named(page: Any, zoo_command: Zoo, train_csv: Path) -> None:
    options = ["--model=SoftVote", "--model.sharpness=0", *SMALL_DATA, "--data.train_file", train_csv]
    refusal(zoo_command("fit", *options), "model.sharpness=0")


def test_the_model_keeps_the_rules_of_the_page(page: Any, adapters: Any) -> None:
    adapter = adapters("classification")
    model = page.SoftVote(word_size=10)
    model._build(Given(adapter.data.spec))
    model.eval()
    test_models.test_what_is_not_of_a_row_changes_nothing(model, adapter)
    test_models.test_empty_texts_and_memories_are_finite(model, adapter)
    expected = test_models.evaluate(adapter, model, adapter.batch)
    assert len(torch.unique(expected, dim=0)) > 1
    other = adapter.batch._replace(target=adapter.batch.target * 0)
    assert torch.equal(test_models.evaluate(adapter, model, other), expected)
