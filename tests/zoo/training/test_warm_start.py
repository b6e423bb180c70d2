"""A warm start from another model, with a frozen encoder."""

import math
from pathlib import Path

import pytest
import torch

import zoo
from tests.zoo.conftest import Fit, Zoo, read_csv, resume, sentences, written_scores
from zoo.training.checkpoints import Start


@pytest.fixture
def start(fit: Fit) -> Path:
    """A model without memory, to start from."""
    return fit("start", "--model.features=M1", "--trainer.max_epochs=2")


def frozen(fit: Fit, start: Path, *options: str, run_dir: str = "frozen") -> Path:
    return fit(
        run_dir, "--model.features=M5", f"--model.init_from={start}", "--model.freeze_encoder=true", *options
    )


@pytest.mark.parametrize(("attention", "share"), [("cosine", 0), ("softmax", 3)])
def test_a_warm_start_predicts_as_its_start_and_sharp_attention_adds_a_vote(
    attention: str, share: int, fit: Fit, start: Path
) -> None:
    # A learning rate of 0 leaves the model as it starts.
    options = (f"--model.attention={attention}", "--model.optimizer.lr=0.0", "--trainer.max_epochs=1")
    run = frozen(fit, start, *options)
    texts = [text for text, _ in sentences(12, seed=9)]
    for before, after in zip(zoo.load(start).predict(texts), zoo.load(run).predict(texts), strict=True):
        votes = dict.fromkeys(before.probabilities, 0.0)
        for memory in after.memories:
            votes[str(memory.label)] += memory.weight
        gained = [
            math.log(after.probabilities[label]) - math.log(before.probabilities[label]) - share * vote
            for label, vote in votes.items()
        ]
        # The softmax subtracts the same from every class.
        assert max(gained) - min(gained) == pytest.approx(0, abs=1e-4)
        if attention == "softmax":
            assert sum(votes.values()) == pytest.approx(1, abs=1e-5)


def test_cached_encodings_give_the_scores_of_the_network(fit: Fit, start: Path, zoo_command: Zoo) -> None:
    run = frozen(fit, start, "--trainer.max_epochs=2", "--model.dropout=0.3")
    scores = written_scores(zoo_command, "validate", f"--ckpt_path={run}", f"--config={run}/config.yaml")
    losses = [float(row["val/loss"]) for row in read_csv(run / "metrics.csv") if row["val/loss"]]
    epoch = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["epoch"]
    assert scores["loss"] == pytest.approx(losses[epoch], rel=1e-5)


def test_a_resumed_run_and_its_model_do_not_need_their_start(fit: Fit, start: Path, zoo_command: Zoo) -> None:
    whole = frozen(fit, start, "--trainer.max_epochs=2")
    half = frozen(fit, start, "--trainer.max_epochs=1", run_dir="half")
    start.rename(start.with_name("gone"))
    assert zoo.load(half).predict("apple")
    resume(zoo_command, half, max_epochs=2)
    resumed, expected = (Start.open(str(run / "checkpoints" / "last.ckpt")).weights for run in (half, whole))
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
