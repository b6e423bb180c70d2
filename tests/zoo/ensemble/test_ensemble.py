"""The ensemble as a run: its answer, its evidence, its stages, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from tests.zoo.conftest import LABELS, Result, refusal, resume, sentences, write_table
from tests.zoo.ensemble.conftest import SMALL, distinct_sentences
from zoo.ensemble.base import read_table
from zoo.ensemble.fit import EnsembleFit
from zoo.training.checkpoints import Start

Run = Callable[..., Path]
Zoo = Callable[..., Result]


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


def test_a_bag_equals_plain_loops(run: Run, vectors_file: Path) -> None:
    """A sum of the vectors of a file, weighted by rarity; words that the file lacks count for nothing."""
    predictor = zoo.load(run("run", f"--data.word_vectors={vectors_file}"))
    known = {line.split()[0]: np.array(line.split()[1:], float) for line in vectors_file.open()}
    rows = predictor.memory.rows.texts[:]  # the training rows
    texts = ["apple pear apple", "pear unknown-word", "unknown-word", ""]
    predictor.predict(texts)  # which gives the model its data
    split = predictor.data.split_of(Rows.from_lists(texts), predictor.memory)
    bags = read_table(predictor.model, predictor.data, split, {"bags"}).bags
    for text, bag in zip(texts, bags, strict=True):
        expected = np.zeros(7)
        for word in text.split():
            if word in known:
                frequency = sum(word in row.split() for row in rows)
                expected += (1 + math.log((1 + len(rows)) / (1 + frequency))) * known[word]
        length = float(np.linalg.norm(expected))
        np.testing.assert_allclose(bag, expected / length if length else expected, atol=1e-5)


def test_word_vectors_are_a_member(run: Run, zoo_command: Zoo, vectors_file: Path, test_csv: Path) -> None:
    vectors = f"--data.word_vectors={vectors_file}"
    folder = run("run", vectors)
    answer = json.loads((folder / "answer.json").read_text())
    assert "bag" in {row["name"] for row in answer["rows"]} & set(answer["weights"])
    assert not any("Not used" in note for note in answer["notes"])
    scores = {}
    # Alone, it needs no encoder.
    for name, options in {"run": [], "alone": ["--model.members=[bag]"]}.items():
        trained = run(name, vectors, *options) if options else folder
        result = zoo_command(
            "test", f"--ckpt_path={trained}", f"--data.test_file={test_csv}", "--output=s.json"
        )
        assert result.code == 0, result.err
        rows = json.loads(Path("s.json").read_text())["answer"]["rows"]
        scores[name] = next(row["accuracy"] for row in rows if row["name"] == "bag")
    assert zoo.load("alone").model.network.encoder is None
    assert scores["run"] == scores["alone"] > 0.4
    # Trained vectors are no member of their own.
    trained = run("trained", vectors, "--model.train_word_vectors=true")
    notes = json.loads((trained / "answer.json").read_text())["notes"]
    assert any("Not used, since bags need the word vectors of a file" in note for note in notes)


def test_a_run_answers_whether_the_memory_helps(run: Run, zoo_command: Zoo, test_csv: Path) -> None:
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
    assert answer["sentence"] in (folder / "output.txt").read_text()
    assert answer["sentence"] in (folder / "answer.md").read_text()

    result = zoo_command("test", f"--ckpt_path={folder}", f"--data.test_file={test_csv}", "--output=s.json")
    assert result.code == 0, result.err
    scores = json.loads(Path("s.json").read_text())
    rows = {row["name"]: row for row in scores["answer"]["rows"]}
    assert rows["all"]["accuracy"] == pytest.approx(scores["accuracy"])
    assert rows["all"]["accuracy"] >= max(row["accuracy"] for row in rows.values()) - 0.1
    assert scores["answer"]["sentence"] in result.out
    assert Path("s_answer.md").exists()


def test_contributions_add_up(run: Run, zoo_command: Zoo, tmp_path: Path) -> None:
    # An encoder of one epoch is so bad that the vote has a weight.
    table = write_table(tmp_path / "many.csv", distinct_sentences(150, seed=1))
    folder = run("run", "--model.members=[encoder,dense_vote]", table=table)
    predictor = zoo.load(folder)
    texts = ["apple of the pear", "some old rain", "zinc", "", "word that nobody knows"]
    for prediction in predictor.predict(texts):
        assert prediction.known_by_memory_alone is False
        expected = float(bool(prediction.memories))
        assert sum(memory.weight for memory in prediction.memories) == pytest.approx(expected, abs=1e-5)
    # Each label's score is the sum of its contributions, and the probabilities are their softmax.
    data, network = predictor.data, predictor.model.network
    split = data.split_of(Rows.from_lists(texts), predictor.memory)
    dataset = data.dataset(split, predictor.model.batch_contents("predict"))
    with torch.no_grad():
        output = network(dataset.__getitems__(range(len(texts))))
    total = torch.stack(list(output.contributions.values())).sum(dim=0)
    torch.testing.assert_close(total, output.logits)
    for row, prediction in enumerate(predictor.predict(texts)):
        score = float(output.logits[row].max())
        assert sum(prediction.contributions.values()) == pytest.approx(score, abs=1e-5)
    Path("t.txt").write_text("\n".join(texts[:3]) + "\n")
    result = zoo_command("predict", f"--ckpt_path={folder}", "--input=t.txt", "--output=p.jsonl")
    assert result.code == 0, result.err
    record = json.loads(Path("p.jsonl").read_text().splitlines()[0])
    assert set(record["contributions"]) <= {"lexical", "encoder", "lexical_vote", "dense_vote"}
    assert record["contributions"] == pytest.approx(predictor.predict(texts[:1])[0].contributions, abs=1e-5)
    # Wrong predictions are listed with the memories of all votes, too.
    other = write_table(tmp_path / "other.csv", distinct_sentences(60, seed=2))
    result = zoo_command("test", f"--ckpt_path={folder}", f"--data.test_file={other}", "--output=s.json")
    assert result.code == 0, result.err
    with Path("s_errors.csv").open(newline="") as file:
        errors = list(csv.DictReader(file))
    assert errors
    for error in errors:
        (prediction,) = predictor.predict([error["text"]])
        assert {each.found_by for each in prediction.memories} > {"words"}
        assert len(error["memories"].splitlines()) == len(prediction.memories)


def test_a_run_resumes_in_the_stage_where_it_was_stopped(
    run: Run, zoo_command: Zoo, train_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("whole", "--trainer.max_epochs=2")

    def stop(self: EnsembleFit) -> None:
        raise InputError("stopped here")

    with monkeypatch.context() as patched:
        patched.setattr(EnsembleFit, "run", stop)
        options = [*SMALL, f"--data.train_file={train_csv}", "--trainer.max_epochs=2", "--run_dir=half"]
        assert zoo_command("fit", *options).code == 2
    resumed = resume(zoo_command, "half", max_epochs=2)
    texts = [text for text, _ in sentences(20, seed=9)]
    for actual, reference in zip(
        zoo.load(resumed).predict(texts), zoo.load(whole).predict(texts), strict=True
    ):
        assert actual.probabilities == pytest.approx(reference.probabilities, abs=1e-6)
    answers = [json.loads((folder / "answer.json").read_text()) for folder in (resumed, whole)]
    assert answers[0] == answers[1]


def test_the_best_epoch_of_the_encoder_is_kept(run: Run) -> None:
    folder = run(
        "run", "--trainer.max_epochs=4", "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.05"
    )
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["val/accuracy"]]
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5]
    assert json.loads((folder / "summary.json").read_text())["epochs"] == 4
    # The last row is the ensemble's.
    accuracies = [float(row["val/encoder_accuracy"] or -1) for row in rows]
    best = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert len(best["memory_zoo"]["epochs"]) == accuracies.index(max(accuracies)) + 1


def test_a_transformer_is_named_once(run: Run, tiny_bert: Path) -> None:
    folder = run("run", f"--model.transformer={tiny_bert}")
    frozen = Start.open(str(folder))
    assert frozen.meta.data.options["tokenizer"] == "tokenizer"
    names = [row["name"] for row in json.loads((folder / "answer.json").read_text())["rows"]]
    assert {"regression", "encoder", "dense_vote"} <= set(names)
    tuned = run("tuned", f"--model.transformer={tiny_bert}", "--model.train_transformer=true")
    trained = Start.open(str(tuned))
    for name, value in frozen.weights.items():
        if name.endswith("layer.0.output.dense.weight"):
            assert not torch.equal(value, trained.weights[name])
    # A machine that was fitted on vectors of length 1 reads the transformer's own vectors.
    predictor = zoo.load(folder)
    texts = [text for text, _ in sentences(8, seed=3)]
    predictor.predict(texts)
    split = predictor.data.split_of(Rows.from_lists(texts), predictor.memory)
    model = predictor.model
    looked_up = read_table(model, predictor.data, split, {"vectors"})
    data, contents = predictor.data, model.batch_contents("predict")
    dataset = data.dataset(split, contents)
    with torch.inference_mode():
        own = model.network.read(dataset.__getitems__(range(len(texts))), {"vectors"})
    scores = [model.network.members["encoder"](each) for each in (looked_up, own)]
    torch.testing.assert_close(scores[0].scores, scores[1].scores, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_wandb_offline")
def test_the_answer_reaches_wandb(run: Run) -> None:
    folder = run("run", "--config=logger/wandb")
    (table,) = folder.glob("wandb/offline-run-*/files/media/table/answer*.json")
    written = json.loads(table.read_text())
    assert [line[0] for line in written["data"]][-1] == "all"
    assert len(written["data"]) == len(json.loads((folder / "answer.json").read_text())["rows"])


# --- starting from another model ---


def test_rows_that_the_start_was_trained_on_fit_no_weights(run: Run, tmp_path: Path) -> None:
    """An encoder that was trained on them before would get too large a weight, whatever the folds."""
    first = distinct_sentences(90, seed=1)
    table = write_table(tmp_path / "first.csv", first)
    start = run("start", table=table)
    assert "72 training rows" in (start / "output.txt").read_text()
    again = run("again", f"--model.init_from={start}", table=table)
    assert "training rows" not in (again / "output.txt").read_text()
    both = [*first, *distinct_sentences(30, seed=11)]
    valid = write_table(tmp_path / "valid.csv", distinct_sentences(15, seed=12))
    grown = run(
        "grown",
        f"--model.init_from={start}",
        f"--data.validation_file={valid}",
        table=write_table(tmp_path / "both.csv", both),
    )
    # The start was not trained on the validation rows of its own table.
    assert "48 training rows" in (grown / "output.txt").read_text()


def test_a_run_is_not_resumed_without_its_start(run: Run, zoo_command: Zoo) -> None:
    """Otherwise it would be trained to its end, and then fail."""
    start = run("start")
    run("run", f"--model.init_from={start}")
    start.rename("gone")
    result = zoo_command(
        "fit", "--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=3"
    )  # fmt: skip
    assert result.code == 2
    assert f"{start}: no such run folder or model folder" in result.err
    assert "stage" not in result.out + result.err


# --- unusual data ---


@pytest.mark.parametrize(
    "rows",
    [
        # Two rows per class.
        [(f"red apple {i}", "fruit") for i in range(2)] + [(f"old zinc {i}", "metal") for i in range(2)],
        [*sentences(30, seed=1), ("a guitar", "music")],  # a class with one row
        [(text.split()[0], label) for text, label in sentences(30, seed=1)],  # texts of one word
    ],
)
def test_small_tables(run: Run, rows: list[tuple[str, str]], tmp_path: Path) -> None:
    folder = run("run", "--data.num_memories=1", table=write_table(tmp_path / "small.csv", rows))
    assert "rows" in json.loads((folder / "answer.json").read_text())
    assert zoo.load(folder).predict("apple")[0].label in {label for _, label in rows}


def test_a_training_needs_a_number_of_epochs(zoo_command: Zoo, train_csv: Path) -> None:
    options = [*SMALL, f"--data.train_file={train_csv}", "--run_dir=run", "--trainer.max_epochs=-1"]
    refusal(zoo_command("fit", *options), "the number of epochs")


def test_a_table_of_one_text_leaves_nothing_to_fit_weights_on(zoo_command: Zoo, tmp_path: Path) -> None:
    table = write_table(tmp_path / "same.csv", [("red apple", "fruit"), ("red apple", "metal")])
    result = zoo_command("fit", *SMALL, f"--data.train_file={table}", "--run_dir=run")
    assert result.code == 2
    assert "same.csv: a single text" in result.err


def test_duplicates_are_in_one_fold(run: Run, tmp_path: Path) -> None:
    """Each text occurs twice with a random label: cross-fitting would know it from its other copy."""
    random = np.random.default_rng(0)
    rows = [(text, str(random.choice(LABELS[:2]))) for text, _ in sentences(60, seed=3)] * 2
    folder = run("run", "--data.validation_split=0", table=write_table(tmp_path / "twice.csv", rows))
    lines = {row["name"]: row for row in json.loads((folder / "answer.json").read_text())["rows"]}
    assert lines["all"]["accuracy"] < 0.65


def test_validation_without_some_class_and_with_an_unknown_one(run: Run, tmp_path: Path) -> None:
    few = write_table(tmp_path / "few.csv", [*sentences(20, seed=6, labels=LABELS[:2]), ("drum", "music")])
    folder = run("run", f"--data.validation_file={few}")
    table = json.loads((folder / "answer.json").read_text())["rows"]
    assert table[-1]["texts"] == 21
    assert table[-1]["right"] <= 20
    none = write_table(tmp_path / "none.csv", [("drum", "music")])
    answer = json.loads((run("none", f"--data.validation_file={none}") / "answer.json").read_text())
    assert re.match(r"Weights are fitted on \d+ training rows, .*; the rows of the table", answer["notes"][0])
    one = write_table(tmp_path / "one.csv", distinct_sentences(1, seed=6))
    start = run("start", "--data.validation_split=0")
    # No other row is left: the training rows are known to the start.
    alone = run(
        "alone", f"--data.validation_file={one}", f"--model.init_from={start}", "--data.validation_split=0"
    )
    answer = json.loads((alone / "answer.json").read_text())
    assert answer["notes"][0].startswith(
        "Weights are fitted on 1 validation rows; some rows of the table had a part"
    )


def test_memories_with_other_labels_do_not_vote(
    run: Run, zoo_command: Zoo, train_csv: Path, tmp_path: Path
) -> None:
    rows = [(text, f"other {label}") for text, label in sentences(30, seed=8)]
    other = write_table(tmp_path / "other.csv", rows)
    folder = run("run", f"--data.memory={other}", "--data.memory_label_column=label")
    answer = json.loads((folder / "answer.json").read_text())
    assert any("Not used" in note and "dense_vote" in note for note in answer["notes"])
    assert "the memory was not measured" in answer["sentence"]
    result = zoo_command(
        "fit", *SMALL, f"--data.train_file={train_csv}", f"--data.memory={other}", "--model.members=[dense_vote]",
        "--run_dir=refused",
    )  # fmt: skip
    assert result.code == 2
    assert "there are no memories (data.num_memories), or they have other labels" in result.err
