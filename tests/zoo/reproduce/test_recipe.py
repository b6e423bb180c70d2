"""What makes a memory pay: warm start, frozen encoder, the vote that is mixed in, and its tuning."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from zoo.memory.tuning import tune

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from tests.zoo.conftest import Result, sentences, write_table
from zoo.knn_bilstm import KNNNetwork, count_votes, mix_in, vote
from zoo.saving.checkpoint import read_checkpoint

Fit = Callable[..., Path]
ZooCommand = Callable[..., Result]


def best(run: Path) -> Path:
    return run / "checkpoints" / "best.ckpt"


# --- the vote ---


def test_a_vote_weighs_cosine_and_score() -> None:
    similarity = torch.tensor([[0.9, 0.1, 0.7]])
    score, mask = torch.tensor([[8.0, 4.0, 0.0]]), torch.tensor([[True, True, False]])
    shares = vote(similarity, score, mask, tau=2.0, score_power=3.0)
    terms = [math.exp(2 * 0.9), math.exp(2 * 0.1) * 0.5**3]
    assert shares[0].tolist() == pytest.approx([terms[0] / sum(terms), terms[1] / sum(terms), 0.0], abs=1e-6)


def test_votes_are_counted_by_class_and_unknown_classes_cast_none() -> None:
    votes = count_votes(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[1, -100, 1]]), 3)
    assert votes[0].tolist() == pytest.approx([0.0, 0.7, 0.0])


def test_mixing_is_a_weighted_mean_of_probabilities() -> None:
    logits, votes = torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([[0.4, 0.4]])
    mixed = mix_in(logits, votes, 0.5).exp()
    assert mixed[0].tolist() == pytest.approx([0.5 * 0.25 + 0.25, 0.5 * 0.75 + 0.25])
    # Without a vote the classifier's own distribution stands.
    assert mix_in(logits, torch.zeros(1, 2), 0.5).exp()[0].tolist() == pytest.approx([0.25, 0.75])


def test_the_mix_is_used_in_evaluation_only(fit: Fit) -> None:
    run = fit("mixed", "--model.features=M1", "--model.mix=1.0", "--trainer.max_epochs=1")
    predictor = zoo.load(best(run))
    text = "apple of the pear"
    prediction = predictor.predict(text)[0]
    votes: dict[str, float] = dict.fromkeys(prediction.probabilities, 0.0)
    for memory in prediction.memories:
        votes[str(memory.label)] += memory.weight
    assert sum(votes.values()) == pytest.approx(1, abs=1e-5)
    for label, probability in prediction.probabilities.items():
        assert probability == pytest.approx(votes[label], abs=1e-5)


# --- warm start and frozen encoder ---


@pytest.fixture
def start(fit: Fit) -> Path:
    """A model without memory, to start from."""
    return fit("start", "--model.features=M1", "--trainer.max_epochs=2")


def frozen(fit: Fit, start: Path, *options: str) -> Path:
    return fit(
        "frozen", "--model.features=M5", f"--model.init_from={best(start)}", "--model.freeze_encoder=true", *options
    )  # fmt: skip


def test_a_frozen_encoder_keeps_the_weights_that_it_started_from(fit: Fit, start: Path) -> None:
    before, after = (
        read_checkpoint(best(run)) for run in (start, frozen(fit, start, "--trainer.max_epochs=2"))
    )
    words = [read["memory_zoo"]["data"]["vocabulary"]["words"] for read in (before, after)]
    for name, value in after["state_dict"].items():
        if name == "network.encoder.words.table":
            for word in set(words[0]) & set(words[1]):
                ours, theirs = value[words[1].index(word)], before["state_dict"][name][words[0].index(word)]
                assert torch.equal(ours, theirs), word
        elif ".encoder.lstm" in name or ".char_lstm" in name:
            assert torch.equal(value, before["state_dict"][name]), name


def test_a_warm_start_predicts_as_the_model_that_it_started_from(fit: Fit, start: Path) -> None:
    # A learning rate of 0: what is left is the start.
    run = frozen(fit, start, "--model.optimizer.lr=0.0", "--trainer.max_epochs=1")
    texts = [text for text, _ in sentences(12, seed=9)]
    for one, other in zip(
        zoo.load(best(start)).predict(texts), zoo.load(best(run)).predict(texts), strict=True
    ):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_sharp_weights_start_as_a_vote_on_top_of_what_the_start_says(fit: Fit, start: Path) -> None:
    run = frozen(
        fit, start, "--model.attention=softmax", "--model.optimizer.lr=0.0", "--trainer.max_epochs=1"
    )
    texts = [text for text, _ in sentences(12, seed=9)]
    before, after = zoo.load(best(start)).predict(texts), zoo.load(best(run)).predict(texts)
    for one, other in zip(before, after, strict=True):
        votes = dict.fromkeys(one.probabilities, 0.0)
        for memory in other.memories:
            votes[str(memory.label)] += memory.weight
        gained = {
            label: math.log(other.probabilities[label])
            - math.log(one.probabilities[label])
            - 3 * votes[label]
            for label in votes
        }
        # The same for every class: what the normalisation takes.
        assert max(gained.values()) - min(gained.values()) == pytest.approx(0, abs=1e-4)
        assert sum(votes.values()) == pytest.approx(1, abs=1e-5)


def test_cached_encodings_give_the_scores_of_the_whole_network(
    fit: Fit, start: Path, zoo_command: ZooCommand
) -> None:
    run = frozen(fit, start, "--trainer.max_epochs=2", "--model.dropout=0.3")
    result = zoo_command("validate", f"--ckpt_path={best(run)}", "--output=scores.json")
    assert result.code == 0, result.err
    with (run / "metrics.csv").open() as file:
        losses = [float(row["val/loss"]) for row in csv.DictReader(file) if row["val/loss"]]
    # Of the epoch that the checkpoint is from.
    epoch = read_checkpoint(best(run))["epoch"]
    assert json.loads(Path("scores.json").read_text())["loss"] == pytest.approx(losses[epoch], rel=1e-5)


def test_starting_from_a_file_that_is_no_checkpoint_is_one_line(
    fit: Fit, zoo_command: ZooCommand, tmp_path: Path
) -> None:
    table = write_table(tmp_path / "t.csv", sentences(30, seed=1))
    result = zoo_command(
        "fit", "--model=KNNBiLSTM", "--data=ClassificationDataModule", f"--data.train_file={table}",
        "--model.init_from=nowhere.ckpt", "--run_dir=r", "--trainer.enable_progress_bar=false",
    )  # fmt: skip
    assert result.code == 2
    assert "nowhere.ckpt: no such checkpoint" in result.err


def test_a_resumed_run_needs_its_start_no_more(fit: Fit, start: Path) -> None:
    whole = frozen(fit, start, "--trainer.max_epochs=2")
    half = fit(
        "half", "--model.features=M5", f"--model.init_from={best(start)}", "--model.freeze_encoder=true",
        "--trainer.max_epochs=1",
    )  # fmt: skip
    last = half / "checkpoints" / "last.ckpt"
    start.rename(start.with_name("gone"))
    resumed = fit(half, f"--ckpt_path={last}", "--trainer.max_epochs=2")
    ours, theirs = (
        read_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (resumed, whole)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_frozen_encoder_of_fresh_weights_is_refused(fit: Fit, start: Path, zoo_command: ZooCommand) -> None:
    config = start / "config.yaml"
    result = zoo_command(
        "fit", f"--config={config}", "--model.features=M5", f"--model.init_from={best(start)}",
        "--model.freeze_encoder=true", "--model.hidden_size=7", "--run_dir=other",
    )  # fmt: skip
    assert result.code == 2
    assert "has no encoder.lstm" in result.err
    assert "freezing would leave it untrained" in result.err


# --- tuning ---


def test_tuning_trusts_a_memory_that_is_right_and_not_one_that_is_wrong(fit: Fit) -> None:
    run = fit("tuned", "--model.features=M1", "--model.mix=0.5", "--trainer.max_epochs=1")
    rows = Rows.from_lists(*zip(*sentences(60, seed=77), strict=True), source="dev")
    predictor = zoo.load(best(run))
    right = tune(predictor, rows)
    assert right.mix > 0
    assert right.accuracy >= right.accuracy_before - 0.05
    network = predictor.model.network
    assert isinstance(network, KNNNetwork)
    assert float(network.mix) == pytest.approx(right.mix)
    # Labels that the memories contradict: shifted by one class.
    labels = sorted(set(rows.labels or []))
    shifted = [labels[(labels.index(label) + 1) % 3] for label in rows.labels or []]
    wrong = tune(zoo.load(best(run)), Rows.from_lists(rows.texts[:], shifted))
    assert wrong.mix < right.mix


def test_tuning_leaves_out_what_the_memory_has(fit: Fit) -> None:
    run = fit("copies", "--model.features=M1", "--model.mix=0.5", "--trainer.max_epochs=1")
    predictor = zoo.load(best(run))
    assert predictor.memory is not None
    with pytest.raises(InputError, match="all rows are in the memory"):
        tune(predictor, predictor.memory.rows)  # type: ignore[attr-defined]
    fresh = Rows.from_lists(*zip(*sentences(20, seed=78), strict=True), source="dev")
    tuned = tune(predictor, Rows.concat([fresh, predictor.memory.rows.select(np.arange(5))]))  # type: ignore[attr-defined]
    assert tuned.in_memory >= 5
    assert tuned.rows + tuned.in_memory == 25


def test_the_tuned_checkpoint_is_used_by_the_commands(
    fit: Fit, zoo_command: ZooCommand, tmp_path: Path
) -> None:
    run = fit("command", "--model.features=M1", "--model.mix=0.5", "--trainer.max_epochs=1")
    dev = write_table(tmp_path / "dev.csv", sentences(40, seed=79))
    result = zoo_command("memory", "tune", str(best(run)), str(dev))
    assert result.code == 0, result.err
    tuned = best(run).with_name("tuned.ckpt")
    assert str(tuned) in result.out
    chosen = float(read_checkpoint(tuned)["state_dict"]["network.mix"])
    assert f"vote {chosen:.2f}" in result.out
    assert zoo_command("test", f"--ckpt_path={tuned}", f"--data.test_file={dev}", "--output=o.json").code == 0


def test_tuning_needs_a_labelled_memory(fit: Fit) -> None:
    run = fit("none", "--model.features=M1", "--trainer.max_epochs=1")
    with pytest.raises(InputError, match="takes no vote of its memories"):
        tune(zoo.load(best(run)), Rows.from_lists(["a"], ["fruit"]))
