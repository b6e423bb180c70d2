"""The ensemble as a run: its answer, its evidence, its stages, and what is refused."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.corpora.rows import Rows
from tests.zoo.conftest import LABELS, Fit, Measure, Zoo, done, read_csv, refusal, sentences, write_table
from tests.zoo.ensemble.conftest import SMALL, distinct_sentences, write_vectors
from zoo.ensemble.base import read_table
from zoo.training.checkpoints import Start


def test_word_vectors_are_a_member_that_equals_plain_loops(run: Fit, measure: Measure) -> None:
    """A sum of the vectors of a file, weighted by rarity; words that the file lacks count for nothing."""
    words = sorted({word for text, _ in sentences(60, seed=1) for word in text.split()})[::-1][2:]
    vectors = f"--data.word_vectors={(file := write_vectors(Path('vectors.txt'), words))}"
    answer = json.loads((run("run", vectors) / "answer.json").read_text())
    assert "bag" in {row["name"] for row in answer["rows"]} & set(answer["weights"])
    assert not any("bags need" in note for note in answer["notes"])
    run("alone", vectors, "--model.members=[bag]")
    tables = (measure(name, sentences(31, seed=2))["answer"]["rows"] for name in ("run", "alone"))
    scores = [row["accuracy"] for rows in tables for row in rows if row["name"] == "bag"]
    assert zoo.load("alone").model.network.encoder is None
    assert scores[0] == scores[1] > 0.4
    predictor = zoo.load("run")
    known = {line.split()[0]: np.array(line.split()[1:], float) for line in file.open()}
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


def test_a_run_answers_whether_the_memory_helps(run: Fit, zoo_command: Zoo, test_csv: Path) -> None:
    folder = run("run")
    answer = json.loads((folder / "answer.json").read_text())
    names = ["majority", "six", "lexical", "named", "naive_bayes", "lexical_vote"]
    assert any(note.endswith("without model.transformer: bag.") for note in answer["notes"])
    assert [row["name"] for row in answer["rows"]] == [*names, "without memory", "memory alone", "all"]
    assert set(answer["weights"]) == set(names[2:])
    for row in answer["rows"]:
        assert row["texts"] == 18
        assert row["accuracy"] == row["right"] / 18
        assert row["difference"] == pytest.approx(answer["rows"][-1]["accuracy"] - row["accuracy"])
    assert answer["sentence"] in (folder / "output.txt").read_text()
    assert answer["sentence"] in (folder / "answer.md").read_text()

    test = ("test", f"--ckpt_path={folder}", f"--data.test_file={test_csv}", "--output=s.json")
    result = done(zoo_command(*test))
    scores = json.loads(Path("s.json").read_text())
    rows = {row["name"]: row for row in scores["answer"]["rows"]}
    assert rows["all"]["accuracy"] == pytest.approx(scores["accuracy"])
    assert rows["all"]["accuracy"] >= max(row["accuracy"] for row in rows.values()) - 0.1
    assert scores["answer"]["sentence"] in result.out
    assert Path("s_answer.md").exists()


def test_contributions_add_up(shared_run: Fit, zoo_command: Zoo, measure: Measure, tiny_bert: Path) -> None:
    options = (f"--model.transformer={tiny_bert}", "--model.metric_steps=0")
    folder = shared_run(distinct_sentences(150, seed=1), "--model.members=[dense_vote]", *options)
    predictor = zoo.load(folder)
    texts = ["apple of the pear", "some old rain", "zinc", "", "word that nobody knows"]
    for prediction in predictor.predict(texts):
        assert prediction.known_by_memory_alone is False
        expected = float(bool(prediction.memories))
        assert sum(memory.weight for memory in prediction.memories) == pytest.approx(expected, abs=1e-5)
    without = [prediction._replace(memories=[]) for prediction in predictor.predict(texts)]
    assert predictor.predict(texts, memories=0) == without
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
    done(zoo_command("predict", f"--ckpt_path={folder}", "--input=t.txt", "--output=p.jsonl"))
    record = json.loads(Path("p.jsonl").read_text().splitlines()[0])
    assert set(record["contributions"]) <= {"lexical", "encoder", "lexical_vote", "dense_vote"}
    assert record["contributions"] == pytest.approx(predictor.predict(texts[:1])[0].contributions, abs=1e-5)
    # Wrong predictions are listed with the memories of all votes, too.
    measure(folder, distinct_sentences(60, seed=2, noise=True))
    errors = read_csv("scores_errors.csv")
    assert errors
    for error in errors:
        (prediction,) = predictor.predict([error["text"]])
        assert {each.found_by for each in prediction.memories} > {"words"}
        assert len(error["memories"].splitlines()) == len(prediction.memories)


def test_a_transformer_is_named_once(run: Fit, tiny_bert: Path) -> None:
    folder = run("run", f"--model.transformer={tiny_bert}")
    frozen = Start.open(str(folder))
    assert frozen.meta.data.options["tokenizer"] == "tokenizer"
    names = [row["name"] for row in json.loads((folder / "answer.json").read_text())["rows"]]
    assert {"regression", "encoder", "dense_vote"} <= set(names)
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
def test_the_answer_reaches_wandb(run: Fit) -> None:
    folder = run("run", "--config=logger/wandb")
    (table,) = folder.glob("wandb/offline-run-*/files/media/table/answer*.json")
    written = json.loads(table.read_text())
    assert [line[0] for line in written["data"]][-1] == "all"
    assert len(written["data"]) == len(json.loads((folder / "answer.json").read_text())["rows"])


@pytest.mark.parametrize(
    "rows",
    [
        # Two rows per class.
        [(f"red apple {i}", "fruit") for i in range(2)] + [(f"old zinc {i}", "metal") for i in range(2)],
        [*sentences(30, seed=1), ("a guitar", "music")],  # a class with one row
        [(text.split()[0], label) for text, label in sentences(30, seed=1)],  # texts of one word
    ],
)
def test_small_tables(shared_run: Fit, rows: list[tuple[str, str]]) -> None:
    folder = shared_run(rows, "--data.num_memories=1")
    assert "rows" in json.loads((folder / "answer.json").read_text())
    assert zoo.load(folder).predict("apple")[0].label in {label for _, label in rows}


def test_a_table_of_one_text_leaves_nothing_to_fit_weights_on(zoo_command: Zoo, tmp_path: Path) -> None:
    table = write_table(tmp_path / "same.csv", [("red apple", "fruit"), ("red apple", "metal")])
    refusal(zoo_command("fit", *SMALL, f"--data.train_file={table}"), "same.csv: a single text")


def test_validation_without_some_class_and_with_an_unknown_one(run: Fit, tmp_path: Path) -> None:
    few = write_table(tmp_path / "few.csv", [*sentences(20, seed=6, labels=LABELS[:2]), ("drum", "music")])
    folder = run("run", f"--data.validation_file={few}")
    table = json.loads((folder / "answer.json").read_text())["rows"]
    assert table[-1]["texts"] == 21
    assert table[-1]["right"] <= 20
    none = write_table(tmp_path / "none.csv", [("drum", "music")])
    answer = json.loads((run("none", f"--data.validation_file={none}") / "answer.json").read_text())
    assert re.match(r"Weights are fitted on \d+ training rows, .*; the rows of the table", answer["notes"][0])


def test_other_labels_do_not_vote(run: Fit, zoo_command: Zoo, train_csv: Path, tmp_path: Path) -> None:
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
    refusal(result, "there are no memories (data.num_memories), or they have other labels")
