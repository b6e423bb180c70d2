"""The ensemble of witnesses: its parts against plain loops, a run by the command, its evidence, its memory."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import LinearSVC

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval.memories.encoded_memory import EncodedMemory
from tests.zoo.conftest import LABELS, Result, sentences, write_table
from zoo.ensemble import fitting, kernel
from zoo.ensemble import model as ensemble_model
from zoo.ensemble.held_out import bags_of, judge
from zoo.ensemble.kernel import GAMMA, RIDGE, KernelMachine
from zoo.ensemble.lexical import LexicalLinear
from zoo.ensemble.weights import Ballots, Scores, Trust, best_shape, fit_trust, fit_weights, folds_of
from zoo.saving.checkpoint import read_checkpoint

Zoo = Callable[..., Result]
EXAMPLES = Path(__file__).parents[3] / "examples"

SMALL = [
    "--model=WitnessEnsemble",
    "--model.hidden_size=6",
    "--model.word_size=8",
    "--model.characters=false",
    "--model.folds=2",
    "--data=ClassificationDataModule",
    "--data.characters=false",
    "--data.num_memories=4",
    "--data.batch_size=16",
    "--data.validation_split=0.2",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.max_epochs=1",
]


@pytest.fixture
def run(zoo_command: Zoo, train_csv: Path) -> Callable[..., Path]:
    """Trains a small ensemble; its run folder."""

    def train(run_dir: str, *options: object, table: Path = train_csv) -> Path:
        result = zoo_command("fit", *SMALL, f"--data.train_file={table}", f"--run_dir={run_dir}", *options)
        assert result.code == 0, result.err
        (Path(run_dir) / "said").write_text(result.out)
        return Path(run_dir).absolute()

    return train


def best(run: Path) -> Path:
    return run / "checkpoints" / "best.ckpt"


# --- weights ---


def _witness(target: torch.Tensor, right: float, seed: int) -> torch.Tensor:
    """Log probabilities of a witness that names the right class of three with this probability, and is honest."""
    drawn = np.random.default_rng(seed)
    named = np.where(
        drawn.random(len(target)) < right, target, (target + drawn.integers(1, 3, len(target))) % 3
    )
    found = torch.full((len(target), 3), math.log((1 - right) / 2))
    found[torch.arange(len(target)), torch.from_numpy(named)] = math.log(right)
    return found


def test_independent_honest_witnesses_get_their_full_weight_and_noise_gets_none() -> None:
    target = torch.from_numpy(np.random.default_rng(0).integers(0, 3, 4000))
    said = {
        "good": _witness(target, 0.7, 1),
        "fair": _witness(target, 0.5, 2),
        "noise": _witness(target, 1 / 3, 3),
    }
    said["noise"] += torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)).mul(0.5)
    weights = fit_weights(said, target)
    assert weights["good"] == pytest.approx(1, abs=0.15)
    assert weights["fair"] == pytest.approx(1, abs=0.25)
    assert weights["noise"] == 0
    together = Trust({}, {"all": weights}).combine(said).argmax(dim=1)
    assert (together == target).double().mean() >= (said["good"].argmax(dim=1) == target).double().mean()


def test_of_equal_witnesses_the_first_is_kept() -> None:
    target = torch.from_numpy(np.random.default_rng(0).integers(0, 3, 300))
    same = _witness(target, 0.6, 1)
    weights = fit_weights({"a": same, "b": same.clone(), "c": same.clone()}, target)
    assert weights["a"] == pytest.approx(1, abs=0.3)
    assert (weights["b"], weights["c"]) == (0, 0)


def test_weights_of_a_few_rows_that_are_all_right_are_finite() -> None:
    target = torch.tensor([0, 1])
    scores = torch.eye(2) * 9
    trust = fit_trust({"a": Scores(scores), "b": Scores(scores)}, target)
    assert all(math.isfinite(weight) for weight in trust.weights["all"].values())
    assert Trust.of(json.loads(json.dumps(trust.describe()))) == trust


def test_a_vote_is_that_of_plain_loops() -> None:
    score = torch.tensor([[4.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    target = torch.tensor([[0, 1, 1], [2, 0, 0], [0, 0, 0]])
    found = Ballots(score, mask, target, 3).log_probabilities((2.0, 0.3)).exp()
    for row in range(3):
        best_score = max(
            [float(s) for s, there in zip(score[row], mask[row], strict=True) if there], default=1.0
        )
        shares = [
            (float(s) / best_score) ** 2 * bool(there) for s, there in zip(score[row], mask[row], strict=True)
        ]
        total = sum(shares) or 1.0
        votes = [
            sum(s / total for s, t in zip(shares, target[row].tolist(), strict=True) if t == c)
            for c in range(3)
        ]
        for c in range(3):
            assert float(found[row, c]) == pytest.approx((votes[c] + 0.1) / (sum(votes) + 0.3), abs=1e-5)


def test_a_sharp_vote_is_chosen_where_the_nearest_memory_is_right() -> None:
    target = torch.arange(60) % 3
    score = torch.tensor([[1.0, 0.9, 0.9]]).repeat(60, 1)
    memories = torch.stack([target, (target + 1) % 3, (target + 1) % 3], dim=1)
    shape = best_shape(Ballots(score, torch.ones(60, 3, dtype=torch.bool), memories, 3), target)
    assert shape[0] >= 20
    flat = best_shape(Ballots(score, torch.ones(60, 3, dtype=torch.bool), memories, 3), (target + 1) % 3)
    assert flat[0] == 0


def test_folds_part_each_class_evenly() -> None:
    target = np.repeat([0, 1, 2], [50, 25, 3])
    folds = folds_of(target, 5)
    counts = np.array([np.bincount(folds[target == c], minlength=5) for c in range(3)])
    assert counts.max(axis=1).tolist() == [10, 5, 1]
    assert (counts.max(axis=1) - counts.min(axis=1)).max() <= 1


# --- the lexical witness ---


def test_whole_words_alone_are_the_usual_support_vector_machine() -> None:
    texts, labels = zip(*sentences(60, seed=3), strict=True)
    target = np.array([LABELS.index(label) for label in labels])
    linear = LexicalLinear(2, 0, 3)
    assert not linear(texts[:2]).any()
    linear.fit(texts, target, 1.0)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    machine = LinearSVC(random_state=0).fit(vectorizer.fit_transform(texts), target)
    others = [text for text, _ in sentences(20, seed=4)] + ["", "unknown"]
    np.testing.assert_allclose(
        linear(others).numpy(), machine.decision_function(vectorizer.transform(others)), atol=1e-5
    )
    again = LexicalLinear(2, 0, 3)
    again.load_state_dict(linear.state_dict())
    assert torch.equal(again(others), linear(others))


def test_letters_help_with_words_that_training_lacks() -> None:
    texts, target = ["applesauce here", "ironworks there"] * 3, np.array([0, 1] * 3)
    for letters, is_right in ((0, False), (5, True)):
        linear = LexicalLinear(1, letters, 2)
        linear.fit(texts, target, 1.0)
        found = linear(["apples", "iron"])
        assert (found.argmax(dim=1).tolist() == [0, 1] and bool((found[0] != found[1]).all())) is is_right


@pytest.mark.parametrize("classes", [2, 3])
def test_a_class_without_rows_loses_everywhere(classes: int) -> None:
    linear = LexicalLinear(1, 0, classes + 1)
    linear.fit(["red sun", "green leaf", "blue sea"] * 4, np.array([0, 1, 0 if classes == 2 else 2] * 4), 1.0)
    found = linear(["red sun", "green leaf", "other"])
    assert found[:2].argmax(dim=1).tolist() == [0, 1]
    assert not (found.argmax(dim=1) == classes).any()


def test_a_kernel_machine_is_kernel_ridge_regression() -> None:
    """With as many landmarks as texts; the last class has no text, and of a text without words nothing is said."""
    random = np.random.default_rng(0)
    vectors, others = (random.normal(size=(n, 5)).astype(np.float32) for n in (60, 20))
    target = (vectors[:, 0] > 0.2).astype(np.int64) + (vectors[:, 1] > 0.5)
    machine = KernelMachine(5, 4)
    assert not machine(torch.from_numpy(others)).any()
    machine.fit(np.concatenate([vectors, np.zeros((3, 5), np.float32)]), np.append(target, [0, 1, 3]))
    mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(axis=0)

    def direction(some: Any) -> Any:
        some = some / np.linalg.norm(some, axis=1, keepdims=True)
        return (some - mean) / np.linalg.norm(some - mean, axis=1, keepdims=True)

    reference = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=GAMMA)
    reference.fit(direction(vectors), np.where(np.eye(4)[target] > 0, 1.0, -1.0))
    found = machine(torch.from_numpy(others))
    np.testing.assert_allclose(found.numpy(), reference.predict(direction(others)), atol=1e-4)
    assert not (found.argmax(dim=1) == 3).any()
    assert not machine(torch.zeros(2, 5)).any()
    torch.testing.assert_close(machine(7 * torch.from_numpy(others)), found)  # a direction has no length
    again = KernelMachine(5, 4)
    again.load_state_dict(machine.state_dict())
    assert torch.equal(again(torch.from_numpy(others)), found)


def test_a_kernel_machine_reads_more_texts_than_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rings, which no plane divides."""
    monkeypatch.setattr(kernel, "MOST_LANDMARKS", 50)
    monkeypatch.setattr(kernel, "_ROWS", 64)
    random = np.random.default_rng(0)
    vectors = random.normal(size=(400, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    target = (np.abs(vectors[:, 0]) > 0.6).astype(np.int64)
    machine = KernelMachine(3, 2)
    machine.fit(vectors[:300], target[:300])
    assert len(machine.landmarks) == 50
    right = machine(torch.from_numpy(vectors[300:])).argmax(dim=1).numpy() == target[300:]
    assert right.mean() > 0.95
    machine.fit(np.zeros((2, 3), np.float32), np.array([0, 1]))  # no text has a word
    assert not machine(torch.from_numpy(vectors)).any()


# --- a run ---


@pytest.fixture
def vectors_file(tmp_path: Path) -> Path:
    """Vectors of most words."""
    words = sorted({word for text, _ in sentences(60, seed=1) for word in text.split()})[::-1][2:]
    random = np.random.default_rng(0)
    file = tmp_path / "vectors.txt"
    file.write_text(
        "".join(f"{word} {' '.join(f'{x:.4f}' for x in random.normal(size=7))}\n" for word in words)
    )
    return file


def test_a_bag_is_that_of_plain_loops(run: Callable[..., Path], vectors_file: Path) -> None:
    """Of a file of vectors, each word's times how rare it is; words that are not in the file count for nothing."""
    predictor = zoo.load(best(run("run", f"--data.word_vectors={vectors_file}")))
    known = {line.split()[0]: np.array(line.split()[1:], float) for line in vectors_file.open()}
    rows = predictor.memory.rows.texts[:]  # the training rows
    texts = ["apple pear apple", "pear unknown-word", "unknown-word", ""]
    predictor.predict(texts)  # which gives the model its data
    found = bags_of(predictor.model, predictor.data.split_of(Rows.from_lists(texts), predictor.memory))
    for text, bag in zip(texts, found, strict=True):
        expected = np.zeros(7)
        for word in text.split():
            if word in known:
                frequency = sum(word in row.split() for row in rows)
                expected += (1 + math.log((1 + len(rows)) / (1 + frequency))) * known[word]
        length = float(np.linalg.norm(expected))
        np.testing.assert_allclose(bag, expected / length if length else expected, atol=1e-5)


def test_word_vectors_are_a_witness(
    run: Callable[..., Path], zoo_command: Zoo, vectors_file: Path, test_csv: Path
) -> None:
    vectors = f"--data.word_vectors={vectors_file}"
    folder = run("run", vectors)
    answer = json.loads((folder / "answer.json").read_text())
    assert "bag" in {row["name"] for row in answer["rows"]} & set(answer["weights"])
    assert not any("Left out" in note for note in answer["notes"])
    scores = {}
    # By itself, it needs no encoder.
    for name, options in {"run": [], "alone": ["--model.witnesses=[bag]"]}.items():
        checkpoint = best(run(name, vectors, *options) if options else folder)
        result = zoo_command(
            "test", f"--ckpt_path={checkpoint}", f"--data.test_file={test_csv}", "--output=s.json"
        )
        assert result.code == 0, result.err
        rows = json.loads(Path("s.json").read_text())["answer"]["rows"]
        scores[name] = next(row["accuracy"] for row in rows if row["name"] == "bag")
    assert zoo.load(best(Path("alone"))).model.network.encoder is None
    assert scores["run"] == scores["alone"] > 0.4
    # Vectors that are trained are no witness of their own.
    answer = json.loads(
        (run("trained", vectors, "--model.train_word_vectors=true") / "answer.json").read_text()
    )
    assert any("Left out, since a bag wants the word vectors of a file" in one for one in answer["notes"])


def test_a_run_says_whether_the_memory_helps(
    run: Callable[..., Path], zoo_command: Zoo, test_csv: Path
) -> None:
    folder = run("run")
    answer = json.loads((folder / "answer.json").read_text())
    names = ["majority", "svm", "lexical", "encoder", "lexical_vote", "dense_vote"]
    assert any(note.endswith("model.train_word_vectors: bag.") for note in answer["notes"])
    assert [row["name"] for row in answer["rows"]] == [*names, "without memory", "memory alone", "all"]
    assert set(answer["weights"]) == set(names[2:])
    for row in answer["rows"]:
        assert row["texts"] == 18
        assert row["accuracy"] == row["right"] / 18
        assert row["difference"] == pytest.approx(answer["rows"][-1]["accuracy"] - row["accuracy"])
    assert answer["sentence"] in (folder / "said").read_text()
    assert answer["sentence"] in (folder / "answer.md").read_text()
    assert (folder / "answer.png").read_bytes()[:4] == b"\x89PNG"

    result = zoo_command(
        "test", f"--ckpt_path={best(folder)}", f"--data.test_file={test_csv}", "--output=s.json"
    )
    assert result.code == 0, result.err
    scores = json.loads(Path("s.json").read_text())
    rows = {row["name"]: row for row in scores["answer"]["rows"]}
    assert rows["all"]["accuracy"] == pytest.approx(scores["accuracy"])
    assert rows["all"]["accuracy"] >= max(row["accuracy"] for row in rows.values()) - 0.1
    assert scores["answer"]["sentence"] in result.out
    assert Path("s_answer.md").exists()


def test_what_the_witnesses_say_adds_up(run: Callable[..., Path], zoo_command: Zoo) -> None:
    folder = run("run")
    predictor = zoo.load(best(folder))
    texts = ["apple of the pear", "some old rain", "zinc", "", "word that nobody knows"]
    for prediction in predictor.predict(texts):
        assert prediction.known_by_memory_alone is False
        assert sum(memory.weight for memory in prediction.memories) == pytest.approx(
            float(bool(prediction.memories)), abs=1e-5
        )
    # Each label's score is the sum of its contributions, and the probabilities are their softmax.
    data, network = predictor.data, predictor.model.network
    split = data.split_of(Rows.from_lists(texts), predictor.memory)
    with data.dataset_for_now(split) as dataset, torch.no_grad():
        output = network(dataset.__getitems__(range(len(texts))))
    total = torch.stack(list(output.contributions.values())).sum(dim=0)
    torch.testing.assert_close(total, output.logits)
    for row, prediction in enumerate(predictor.predict(texts)):
        assert sum(prediction.contributions.values()) == pytest.approx(
            float(output.logits[row].max()), abs=1e-5
        )
    Path("t.txt").write_text("\n".join(texts[:3]) + "\n")
    result = zoo_command("predict", f"--ckpt_path={best(folder)}", "--input=t.txt", "--output=p.jsonl")
    assert result.code == 0, result.err
    record = json.loads(Path("p.jsonl").read_text().splitlines()[0])
    assert set(record["contributions"]) <= {"lexical", "encoder", "lexical_vote", "dense_vote"}
    assert record["contributions"] == pytest.approx(predictor.predict(texts[:1])[0].contributions)


def test_a_run_goes_on_in_the_stage_where_it_was_stopped(
    run: Callable[..., Path], zoo_command: Zoo, train_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("whole", "--trainer.max_epochs=2")

    def stop(*_: Any) -> None:
        raise InputError("stopped here")

    with monkeypatch.context() as patched:
        patched.setattr(ensemble_model, "fit_rest", stop)
        options = [*SMALL, f"--data.train_file={train_csv}", "--trainer.max_epochs=2", "--run_dir=half"]
        assert zoo_command("fit", *options).code == 2
    last = Path("half/checkpoints/last.ckpt")
    # What there is so far predicts: the encoder alone.
    assert zoo.load(last).predict("apple")[0].label in LABELS
    resumed = run("half", "--trainer.max_epochs=2", f"--ckpt_path={last}")
    texts = [text for text, _ in sentences(20, seed=9)]
    ours, theirs = (zoo.load(best(folder)).predict(texts) for folder in (resumed, whole))
    for one, other in zip(ours, theirs, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)
    assert json.loads((resumed / "answer.json").read_text()) == json.loads(
        (whole / "answer.json").read_text()
    )


def test_the_best_epoch_of_the_encoder_is_kept(run: Callable[..., Path]) -> None:
    folder = run(
        "run", "--trainer.max_epochs=4", "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.05"
    )
    with (folder / "metrics.csv").open() as file:
        accuracies = [float(row["val/accuracy"]) for row in csv.DictReader(file) if row["val/accuracy"]]
    assert len(accuracies) == 5
    kept = read_checkpoint(best(folder))["memory_zoo"]["best_encoder"]
    assert kept["accuracy"] == pytest.approx(max(accuracies[:4]))
    assert kept["epochs"] == accuracies.index(max(accuracies[:4])) + 1


def test_witnesses_of_random_labels_are_no_better_than_chance_on_held_out_rows(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    """Judged by rows that they have learned from, the witnesses would be nearly always right."""
    drawn = np.random.default_rng(0)
    rows = [(text, str(drawn.choice(LABELS))) for text, _ in sentences(150, seed=5)]
    folder = run("run", "--data.validation_split=0.4", table=write_table(tmp_path / "noise.csv", rows))
    table = {row["name"]: row["accuracy"] for row in json.loads((folder / "answer.json").read_text())["rows"]}
    assert table["all"] < 0.55


def test_a_transformer_is_named_once(run: Callable[..., Path], tiny_bert: Path) -> None:
    folder = run("run", f"--model.transformer={tiny_bert}")
    assert read_checkpoint(best(folder))["memory_zoo"]["data"]["options"]["tokenizer"] == str(tiny_bert)
    names = [row["name"] for row in json.loads((folder / "answer.json").read_text())["rows"]]
    assert {"regression", "encoder", "dense_vote"} <= set(names)
    tuned = run("tuned", f"--model.transformer={tiny_bert}", "--model.train_transformer=true")
    for name, value in read_checkpoint(best(folder))["state_dict"].items():
        if name.endswith("layer.0.output.dense.weight"):
            assert not torch.equal(value, read_checkpoint(best(tuned))["state_dict"][name])
    # What was fitted on vectors of length 1 is read from vectors as the transformer makes them.
    predictor = zoo.load(best(folder))
    texts = [text for text, _ in sentences(8, seed=3)]
    predictor.predict(texts)
    split = predictor.data.split_of(Rows.from_lists(texts), predictor.memory)
    predictor.model.network.says_all = True
    known = judge(predictor.model, split, predictor.encode(texts)).opinions["encoder"]
    read = judge(predictor.model, split).opinions["encoder"]
    assert isinstance(known, Scores)
    assert isinstance(read, Scores)
    torch.testing.assert_close(known.scores, read.scores, rtol=1e-4, atol=1e-4)


# --- memories ---


def test_what_is_added_is_voted_for_at_once_and_weights_are_fitted_again(
    run: Callable[..., Path], zoo_command: Zoo, tmp_path: Path
) -> None:
    folder = run("run", "--model.witnesses=[lexical_vote,dense_vote]")
    more = write_table(tmp_path / "more.csv", [("quince quince jam", "fruit"), ("quince tart", "fruit")])
    result = zoo_command("memory", "add", best(folder), more)
    assert result.code == 0, result.err
    found = zoo.load(best(folder)).predict("quince")[0]
    assert "quince tart" in [memory.text for memory in found.memories]
    assert found.label == "fruit"
    dev = write_table(tmp_path / "dev.csv", sentences(40, seed=79))
    result = zoo_command("memory", "tune", best(folder), dev)
    assert result.code == 0, result.err
    assert "weights lexical_vote" in result.out
    assert "and 2 that were added to the memory" in result.out
    tuned = best(folder).with_name("tuned.ckpt")
    assert zoo_command("test", f"--ckpt_path={tuned}", f"--data.test_file={dev}").code == 0
    strange = write_table(tmp_path / "strange.csv", [("a", "sport")])
    assert "does not know the label 'sport'" in zoo_command("memory", "tune", best(folder), strange).err


def test_a_new_class_is_predicted_by_the_memory_alone(
    run: Callable[..., Path], zoo_command: Zoo, tmp_path: Path
) -> None:
    folder = run("run")
    texts = [text for text, _ in sentences(60, seed=9)]
    before = zoo.load(best(folder)).predict(texts)
    words = ["guitar", "violin", "drum", "flute"]
    music = [(f"{words[i % 4]} {words[(i // 4) % 4]} the {i}", "music") for i in range(12)]
    more = write_table(tmp_path / "more.csv", music)
    assert "--unknown_labels skip" in zoo_command("memory", "add", best(folder), more).err
    result = zoo_command("memory", "add", best(folder), more, "--new_labels=true")
    assert result.code == 0, result.err
    assert "music" in result.out
    predictor = zoo.load(best(folder))
    new = predictor.predict(["guitar and violin", "a drum"])
    for prediction in new:
        assert (prediction.label, prediction.known_by_memory_alone) == ("music", True)
        assert set(prediction.contributions) >= {"known by memory alone"}
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
        score = sum(prediction.contributions.values())
        assert math.exp(score) == pytest.approx(prediction.probability, abs=1e-4)
    same = [one.label == other.label for one, other in zip(before, predictor.predict(texts), strict=True)]
    assert np.mean(same) >= 0.95
    # Where no memory speaks for the class it is not there: in a text without words, and in the memory as it was.
    assert predictor.predict("")[0].probabilities["music"] == 0
    old = zoo.load(best(folder), memory_version=1).predict(texts)
    for one, other in zip(before, old, strict=True):
        assert other.probabilities == pytest.approx({**one.probabilities, "music": 0}, abs=1e-5)
    test = write_table(
        tmp_path / "test.csv", [*sentences(30, seed=11), ("violin solo", "music"), ("x", "sport")]
    )
    result = zoo_command("test", f"--ckpt_path={best(folder)}", f"--data.test_file={test}", "--output=s.json")
    assert result.code == 0, result.err
    scores = json.loads(Path("s.json").read_text())
    assert scores["unknown_labels"] == 1
    assert scores["recall/music"] == 1
    dev = write_table(tmp_path / "dev.csv", [*sentences(40, seed=79), ("flute", "music")])
    assert zoo_command("memory", "tune", best(folder), dev).code == 0
    assert zoo.load(best(folder).with_name("tuned.ckpt")).predict("guitar")[0].label == "music"


def test_other_models_refuse_new_classes(zoo_command: Zoo, train_csv: Path, tmp_path: Path) -> None:
    options = ["--data=ClassificationDataModule", f"--data.train_file={train_csv}", "--run_dir=vote"]
    assert zoo_command("fit", "--model=NeighborVote", *options).code == 0
    more = write_table(tmp_path / "more.csv", [("guitar", "music")])
    result = zoo_command("memory", "add", "vote/checkpoints/best.ckpt", more, "--new_labels=true")
    assert result.code == 2
    assert "a NeighborVote can't predict labels that it was not trained with" in result.err


def test_a_memory_is_encoded_once_for_all_and_grows_with_the_memory(
    run: Callable[..., Path],
    zoo_command: Zoo,
    tmp_path: Path,
    test_csv: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = run("run", "--model.witnesses=[dense_vote]")
    encoded: list[str] = []
    kind = zoo.WitnessEnsemble
    encode = kind.encode

    def counted(self: Any, texts: list[str]) -> Any:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(kind, "encode", counted)
    assert zoo_command("test", f"--ckpt_path={best(folder)}", f"--data.test_file={test_csv}").code == 0
    zoo.load(best(folder)).predict("apple")
    assert encoded == []
    more = write_table(tmp_path / "more.csv", [("quince tart", "fruit"), ("nickel hail", "metal")])
    assert zoo_command("memory", "add", best(folder), more).code == 0
    zoo.load(best(folder)).predict("apple")
    zoo.load(best(folder)).predict("pear")
    assert encoded == ["quince tart", "nickel hail"]


def test_vectors_of_known_texts_are_looked_up(tmp_path: Path) -> None:
    from datamodules.corpora.rows import Rows
    from datamodules.retrieval import EmbeddedRetriever, FolderMemory

    asked: list[str] = []

    def encode(texts: list[str]) -> Any:
        asked.extend(texts)
        drawn = np.array([[len(text), 1.0] for text in texts], np.float32)
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    memory = FolderMemory.build(
        Rows.from_lists(["a", "bbb", "a"], ["x", "y", "x"]), EmbeddedRetriever(), tmp_path / "m"
    )
    found = EncodedMemory.open(memory, "f" * 64, encode)
    assert asked == ["a", "bbb", "a"]
    vectors = found.vectors_of(["bbb", "cc", "a", "cc"])
    assert asked[3:] == ["cc"]
    np.testing.assert_allclose(vectors, encode(["bbb", "cc", "a", "cc"]))
    hits = found.search(vectors[:1], 2, exclude=[[1]])
    assert hits.rows.tolist() == [[0, 2]]
    assert EncodedMemory.open(memory, "f" * 64, lambda texts: pytest.fail("encoded again")).vectors.shape == (
        3,
        2,
    )


# --- bad input ---


@pytest.mark.parametrize(
    "rows",
    [
        # Two rows a class.
        [(f"red apple {i}", "fruit") for i in range(2)] + [(f"old zinc {i}", "metal") for i in range(2)],
        [*sentences(30, seed=1), ("a guitar", "music")],  # a class with one row
        [(text.split()[0], label) for text, label in sentences(30, seed=1)],  # texts of one word
    ],
)
def test_small_and_strange_tables(run: Callable[..., Path], rows: list[Any], tmp_path: Path) -> None:
    table = write_table(tmp_path / "small.csv", rows)
    folder = run("run", "--data.num_memories=1", table=table)
    assert "rows" in json.loads((folder / "answer.json").read_text())
    assert zoo.load(best(folder)).predict("apple")[0].label in {label for _, label in rows}


def test_a_table_of_copies_leaves_nothing_to_validate(zoo_command: Zoo, tmp_path: Path) -> None:
    table = write_table(tmp_path / "copies.csv", [("red apple", "fruit"), ("old zinc", "metal")] * 2)
    options = [*SMALL, f"--data.train_file={table}", "--data.num_memories=1", "--run_dir=run"]
    result = zoo_command("fit", *options)
    assert result.code == 2
    assert "no row is left for validation" in result.err


def test_validation_without_some_class_and_with_an_unknown_one(
    run: Callable[..., Path], zoo_command: Zoo, train_csv: Path, tmp_path: Path
) -> None:
    few = write_table(tmp_path / "few.csv", [*sentences(20, seed=6, labels=LABELS[:2]), ("drum", "music")])
    folder = run("run", f"--data.validation_file={few}")
    table = json.loads((folder / "answer.json").read_text())["rows"]
    assert table[-1]["texts"] == 21
    assert table[-1]["right"] <= 20
    none = write_table(tmp_path / "none.csv", [("drum", "music")])
    result = zoo_command(
        "fit", *SMALL, f"--data.train_file={train_csv}", f"--data.validation_file={none}", "--model.few_rows=0",
        "--run_dir=none",
    )  # fmt: skip
    assert result.code == 2
    assert "no weight can be fitted" in result.err


def test_memories_of_another_task_do_not_vote_and_that_is_said(
    run: Callable[..., Path], zoo_command: Zoo, train_csv: Path, tmp_path: Path
) -> None:
    other = write_table(
        tmp_path / "other.csv", [(text, f"other {label}") for text, label in sentences(30, seed=8)]
    )
    folder = run("run", f"--data.memory={other}", "--data.memory_label_column=label")
    answer = json.loads((folder / "answer.json").read_text())
    assert any("Left out" in note and "dense_vote" in note for note in answer["notes"])
    assert "nothing can be said about the memory" in answer["sentence"]
    result = zoo_command(
        "fit", *SMALL, f"--data.train_file={train_csv}", f"--data.memory={other}", "--model.witnesses=[dense_vote]",
        "--run_dir=refused",
    )  # fmt: skip
    assert result.code == 2
    assert "a vote needs memories (data.num_memories) with labels of the texts' own" in result.err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--model.witnesses=[lexical,lexical]", "choose some of lexical"),
        ("--model.witnesses=[]", "choose some of lexical"),
        ("--model.max_letters=1", "max_letters"),
        ("--model.folds=1", "folds"),
        ("--model.train_transformer=true", "model.transformer names none"),
        ("--trainer.max_epochs=-1", "how many epochs"),
    ],
)
def test_options_that_are_refused(option: str, words: str, zoo_command: Zoo, train_csv: Path) -> None:
    result = zoo_command("fit", *SMALL, f"--data.train_file={train_csv}", "--run_dir=run", option)
    assert result.code == 2
    assert words in result.err


def test_the_stages_come_in_order(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    tell = zoo.WitnessEnsemble.tell

    def listen(self: Any, stage: str) -> None:
        told.append(stage)
        tell(self, stage)

    monkeypatch.setattr(zoo.WitnessEnsemble, "tell", listen)
    run("run")
    assert [stage[:12] for stage in told if stage.startswith("stage")] == [
        f"stage {i} of 4" for i in range(1, 5)
    ]
    assert fitting.__name__.endswith("fitting")


@pytest.mark.usefixtures("_wandb_offline")
def test_the_answer_reaches_wandb(run: Callable[..., Path]) -> None:
    folder = run("run", "--config", EXAMPLES / "logger" / "wandb.yaml")
    (table,) = folder.glob("wandb/offline-run-*/files/media/table/answer*.json")
    written = json.loads(table.read_text())
    assert [line[0] for line in written["data"]][-1] == "all"
    assert len(written["data"]) == len(json.loads((folder / "answer.json").read_text())["rows"])


def test_rows_that_the_start_has_seen_fit_no_weights(run: Callable[..., Path], tmp_path: Path) -> None:
    """An encoder that was trained on them before would be taken for better than it is, whatever the folds."""
    start = run("start")
    assert "72 training rows" in (start / "said").read_text()
    again = run("again", f"--model.init_from={start}")
    assert "training rows" not in (again / "said").read_text()
    both = [*sentences(90, seed=1), *sentences(30, seed=11)]
    valid = write_table(tmp_path / "valid.csv", sentences(15, seed=12))
    grown = run(
        "grown",
        f"--model.init_from={start}",
        f"--data.validation_file={valid}",
        table=write_table(tmp_path / "both.csv", both),
    )
    # Of the start's table, its own validation rows are new to it, too.
    assert "48 training rows" in (grown / "said").read_text()


def test_a_run_is_not_resumed_without_its_start(run: Callable[..., Path], zoo_command: Zoo) -> None:
    """Or it would be trained to its end, and then fail."""
    start = best(run("start")).rename("start.ckpt").absolute()
    run("run", f"--model.init_from={start}")
    start.unlink()
    result = zoo_command(
        "fit", "--config=run/config.yaml", "--run_dir=run", "--ckpt_path=run/checkpoints/last.ckpt",
        "--trainer.max_epochs=3",
    )  # fmt: skip
    assert result.code == 2
    assert "model.init_from: start.ckpt: no such" in result.err.replace(f"{Path.cwd()}/", "")
    assert "stage" not in result.out + result.err
