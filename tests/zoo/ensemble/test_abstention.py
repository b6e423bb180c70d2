"""`zoo predict --max_error` and `--label_sets`: thresholds by held-out rows that stay with a model."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.classification import label_numbers
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from tests.zoo.conftest import Edit, Fit, Zoo, done, read_json, read_jsonl, refusal, write_table
from tests.zoo.ensemble.conftest import distinct_sentences
from zoo.ensemble.base import read_table
from zoo.ensemble.cross_fitting import classify
from zoo.ensemble.pool import HeldOut, fit_pool, folds_of

LEXICAL = "--model.members=[lexical,lexical_vote]"
ROWS, DEV = distinct_sentences(150, seed=1), distinct_sentences(120, seed=4)
TEXTS = [text for text, _ in distinct_sentences(30, seed=3)]
#: Without a word of any topic.
UNKNOWN = "ba"


@pytest.fixture
def train(shared_run: Fit) -> Fit:
    """Trains members with 120 held-out rows."""
    return lambda members: shared_run(ROWS, members, validation=DEV)


@pytest.fixture
def model(train: Fit) -> Path:
    return train(LEXICAL)


def test_an_uncertain_text_has_no_label(model: Path, zoo_command: Zoo) -> None:
    predictor = zoo.load(model)
    scores = predictor.held_out_rows()
    assert len(scores.is_right) == 120
    uncertain, certain = predictor.predict([UNKNOWN, TEXTS[0]], max_error=0.05, label_sets=0.1)
    assert (uncertain.label, uncertain.reason) == (None, "uncertain")
    assert certain.reason == ""
    assert certain.label in certain.labels
    # The evidence is the usual one.
    plain = predictor.predict([UNKNOWN, TEXTS[0]])
    for decided, each in zip((uncertain, certain), plain, strict=True):
        assert decided._replace(label=each.label, reason=None, labels=None) == each
    write_table(Path("texts.csv"), [(UNKNOWN, "x"), (TEXTS[0], "x")])
    options = (f"--ckpt_path={model}", "--input=texts.csv", "--output=p.jsonl")
    done(zoo_command("predict", *options, "--max_error=0.05", "--label_sets=0.1"))
    records = read_jsonl("p.jsonl")
    assert [(each["label"], each["reason"]) for each in records] == [(None, "uncertain"), (certain.label, "")]
    assert records[1]["labels"] == certain.labels
    # Without the options, the record is as before.
    done(zoo_command("predict", *options))
    record = read_jsonl("p.jsonl")[0]
    assert record["label"] is not None
    assert not {"reason", "labels"} & record.keys()


def test_a_text_of_no_class_is_unknown(
    model: Path, zoo_command: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = [f"nothing {number} here {number} is known" for number in range(20)]
    predictor = zoo.load(model)
    predictions = predictor.predict([*TEXTS, *foreign, ROWS[0][0]], unknown=0.05)
    of_texts, (*of_foreign, of_memory) = predictions[: len(TEXTS)], predictions[len(TEXTS) :]
    assert {(each.label, each.reason) for each in of_foreign} == {(None, "unknown")}
    assert [each.reason for each in of_texts].count("unknown") <= 0.2 * len(TEXTS)
    assert all((each.reason == "unknown") == (each.familiarity <= 0.05) for each in predictions)
    assert (of_memory.reason, of_memory.familiarity) == ("", 1.0)
    Path("t.txt").write_text("\n".join([TEXTS[0], *foreign]) + "\n")
    options = (f"--ckpt_path={model}", "--input=t.txt", "--unknown=0.05")
    with caplog.at_level(logging.INFO, logger="zoo"):
        done(zoo_command("predict", *options, "--output=p.csv"))
    assert "20 of them abstained" in caplog.text
    rows = csv.DictReader(Path("p.csv").read_text().splitlines())
    assert [row["reason"] for row in rows] == ["", *["unknown"] * 20]
    assert predictor.predict(foreign[:1], max_error=0.05, unknown=0.05)[0].reason == "unknown"


def test_a_report_of_drift(model: Path, zoo_command: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    same, other = Path("same.txt"), Path("other.txt")
    same.write_text("\n".join(text for text, _ in distinct_sentences(60, seed=5)) + "\n")
    other.write_text("\n".join(f"nothing {number} here {number} is known" for number in range(60)) + "\n")
    for file, verdict in ((same, "no sign of drift"), (other, "DRIFT: the texts are of another kind")):
        caplog.clear()
        predict = ("predict", f"--ckpt_path={model}", "--input", file, "--output=o.jsonl", "--report=true")
        result = done(zoo_command(*predict))
        assert verdict in caplog.text + result.err
    predictor = zoo.load(model)
    predictor.held_out = None
    with pytest.raises(InputError, match="report: this MemoryEnsemble has no held-out rows"):
        list(predictor.records(str(same), report=True))


def test_levels_that_cannot_be_certified(model: Path, zoo_command: Zoo) -> None:
    Path("t.txt").write_text("a text\n")
    for option, words in (
        ("--max_error=0.001", "120 held-out rows can certify 0."),
        ("--max_error=0", "above 0 and below 1"),
        ("--max_error=1", "above 0 and below 1"),
        ("--confidence=1", "above 0 and below 1"),
        ("--label_sets=1.5", "above 0 and below 1"),
        ("--label_sets=0.001", "120 held-out rows can certify 0.0083"),
        ("--unknown=0.001", "120 held-out rows can certify 0.0083"),
    ):
        refusal(zoo_command("predict", f"--ckpt_path={model}", "--input=t.txt", option), words)


def test_results_are_those_of_the_last_fit(
    train: Fit, zoo_command: Zoo, edit: Edit, caplog: pytest.LogCaptureFixture
) -> None:
    """A version of the memory without a `tune` uses them, and it is logged once."""
    model = train("--model.members=[lexical_vote]")
    before = zoo.load(model).held_out_rows()
    assert "the memory changed" not in caplog.text
    edit("add", model, distinct_sentences(60, seed=2))
    predictor = zoo.load(model)
    with caplog.at_level("INFO", logger="zoo"):
        for _ in range(2):
            assert (predictor.held_out_rows().probability == before.probability).all()
    assert caplog.text.count("the memory changed after") == 1
    edit("tune", model, distinct_sentences(80, seed=6))
    tuned = zoo.load(model).held_out_rows()
    assert len(tuned.is_right) == 80
    assert (zoo.load(model, memory_version=1).held_out_rows().probability == before.probability).all()
    # An exported folder has the version that it exports, and nothing older.
    done(zoo_command("export", model, "shared"))
    assert "80 held-out texts" in Path("shared/README.md").read_text()
    assert (zoo.load("shared").held_out_rows().probability == tuned.probability).all()
    with pytest.raises(InputError, match=r"has no version 1|version 1 was deleted"):
        zoo.load("shared", memory_version=1)


def test_results_are_out_of_fold(train: Fit, edit: Edit) -> None:
    """By hand, for rows of one fold: members of the training, weights that were fitted to the other rows."""
    folder = train("--model.members=[lexical_vote]")
    edit("tune", folder, DEV)  # to these rows alone
    predictor = zoo.load(folder)
    model, data, rows = predictor.model, predictor.data, predictor.held_out
    predictor.predict(UNKNOWN)
    split = data.split_of(Rows.from_lists(rows.texts, rows.labels), predictor.memory)
    network = model.network
    outputs = classify(network.members, network.used, read_table(model, data, split, network.reads))
    target = label_numbers(split.rows, model.labels)
    held_out = HeldOut(outputs, torch.from_numpy(target), data.duplicate_keys(split.rows))
    folds = folds_of(target, 5, held_out.groups)
    for fold in range(5):
        pool = fit_pool(held_out.select(np.flatnonzero(folds != fold)))
        own = np.flatnonzero(folds == fold)
        probabilities = pool.combine(pool.calibrate(held_out.select(own).outputs)).softmax(dim=1)
        assert rows.probability[own] == pytest.approx(probabilities.amax(dim=1).numpy(), abs=1e-6)


def test_labels_that_only_the_memory_has(model: Path, edit: Edit) -> None:
    """Nothing is known about the error of such an answer, until held-out rows have the label."""
    others = [text for text, _ in distinct_sentences(100, seed=5)]
    music = [(f"guitar drum {text.partition(' ')[2]}", "music") for text in others]
    edit("add", model, music[:40], "--new_labels=true")
    text = music[3][0]
    assert zoo.load(model).predict(text)[0].label == "music"
    answer = zoo.load(model).predict(text, max_error=0.7)[0]
    assert (answer.label, answer.reason, answer.known_by_memory_alone) == (None, "uncertain", True)
    edit("tune", model, [*distinct_sentences(60, seed=6), *music[40:]])
    predictor = zoo.load(model)
    assert predictor.held_out.labels.count("music") == 60
    assert (predictor.held_out_rows().probability >= 0).all()
    answer = predictor.predict(text, max_error=0.7)[0]
    assert (answer.label, answer.reason, answer.known_by_memory_alone) == ("music", "", True)


def test_without_validation_rows(run: Fit, edit: Edit, tmp_path: Path) -> None:
    """Cross-fitted training rows have results; `tune` brings texts."""
    table = write_table(tmp_path / "table.csv", distinct_sentences(90, seed=1))
    model = run("run", "--data.validation_split=0", LEXICAL, table=table)
    predictor = zoo.load(model)
    assert predictor.held_out.texts is None
    assert len(predictor.held_out_rows().is_right) == 90
    predictor.predict(UNKNOWN, max_error=0.2)
    edit("tune", model, distinct_sentences(80, seed=4))
    assert len(zoo.load(model).held_out_rows().is_right) == 80


def test_a_model_without_held_out_rows(trained_run: Path) -> None:
    with pytest.raises(InputError, match="train a MemoryEnsemble"):
        zoo.load(trained_run).predict("a text", max_error=0.2)


def test_calibration_in_a_test(model: Path, zoo_command: Zoo) -> None:
    test = write_table(Path("test.csv"), distinct_sentences(60, seed=9, noise=True))
    result = done(zoo_command("test", f"--ckpt_path={model}", f"--data.test_file={test}", "--output=s.json"))
    assert "ECE" in result.out
    assert "error among answers, at most" in result.out
    calibration = read_json("s.json")["calibration"]
    assert calibration["rows"] == 60
    assert calibration["ece_bins"] == "15 of equal mass"
    predictions = zoo.load(model).predict([text for text, _ in distinct_sentences(60, seed=9, noise=True)])
    mean = sum(rows * probability for probability, _, rows in calibration["bins"]) / 60
    assert mean == pytest.approx(sum(each.probability for each in predictions) / 60, rel=1e-5)
    assert Path("s_reliability.png").stat().st_size > 1000
    assert Path("s_reliability.csv").is_file()
