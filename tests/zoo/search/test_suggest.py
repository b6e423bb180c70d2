"""`zoo suggest`: a table to label, from nothing and from a model, and what is refused."""

import csv
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier

from datamodules.corpora.rows import Rows
from tests.zoo.conftest import TOPIC_WORDS, Zoo, done, read_csv, refusal, sentences, write_table
from tests.zoo.ensemble.conftest import SMALL
from zoo.loading import load
from zoo.memory.commands import _show_accuracy
from zoo.search.suggest import choose, pick, share_reached


def topic_of(text: str) -> str:
    return next(topic for topic, words in TOPIC_WORDS.items() if set(words) & set(text.split()))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    texts = [text for text, _ in sentences(300, seed=8)]
    return write_table(tmp_path / "pool.csv", [[text] for text in [*texts, *texts[:20], " "]], ["text"])


def test_from_nothing(zoo_command: Zoo, pool: Path) -> None:
    done(zoo_command("suggest", "--input", pool, "--n", 20))
    rows = read_csv("to_label.csv")
    assert len({row["text"] for row in rows}) == 20
    assert Counter(row["drawn"] for row in rows) == {"by model": 16, "at random": 4}
    assert not any(row["label"] or row["likely_label"] for row in rows)
    texts = [text for (text,) in csv.reader(pool.open())][1:]
    assert all(texts[int(row["id"])] == row["text"] for row in rows)
    first = Path("to_label.csv").read_bytes()
    done(zoo_command("suggest", "--input", pool, "--n", 20))
    assert Path("to_label.csv").read_bytes() == first


def test_from_a_model_to_its_memory(zoo_command: Zoo, pool: Path, copied_run: Path) -> None:
    done(zoo_command("suggest", "--input", pool, "--ckpt_path", copied_run, "--n", 40))
    rows = read_csv("to_label.csv")
    assert {row["likely_label"] for row in rows} <= {*TOPIC_WORDS}
    assert all(0 < float(row["probability"]) <= 1 and row["memory_text"] for row in rows)
    right = [row["likely_label"] == topic_of(row["text"]) for row in rows if row["drawn"] == "at random"]
    labelled = [list((row | {"label": topic_of(row["text"])}).values()) for row in rows]
    write_table(Path("labelled.csv"), labelled, [*rows[0]])
    out = done(zoo_command("memory", "add", copied_run, "labelled.csv")).out
    assert f"{sum(right) / 8:.1%} ± " in out
    assert "of the 8 texts drawn at random had their label" in out
    assert "has labels, " in refusal(zoo_command("suggest", "--input", pool, "--output", "labelled.csv"))
    out = done(zoo_command("suggest", "--input", pool, "--ckpt_path", copied_run, "--n", 200)).out
    assert "the labels so far reach about " in out
    assert not {row["text"] for row in rows} & {row["text"] for row in read_csv("to_label.csv")}


def test_an_encoder_groups_the_texts(zoo_command: Zoo, pool: Path, tiny_bert: Path) -> None:
    done(zoo_command("suggest", "--input", pool, "--encoder", tiny_bert, "--n", 10, "--output", "b.csv"))
    assert len(read_csv("b.csv")) == 10


@pytest.mark.parametrize("kind", ["network", "ensemble"])
def test_a_text_is_encoded_once(zoo_command: Zoo, copied_run: Path, tiny_bert: Path, kind: str) -> None:
    run = copied_run
    if kind == "ensemble":
        table = write_table(Path("train.csv"), sentences(60, seed=1))
        options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=0", "--model.members=[encoder]"]
        done(zoo_command("fit", *SMALL, f"--data.train_file={table}", *options, "--run_dir=ensemble"))
        run = Path("ensemble")
    model = load(str(run))
    texts = [text for text, _ in sentences(300, seed=8)]
    expected, vectors = model.predict(texts, memories=0), model.encode(texts)
    encoded = list[int]()
    model.model.network.encoder.register_forward_hook(lambda _, given, output: encoded.append(len(output)))
    predictions, read = model.predict_and_encode(texts)
    assert sum(encoded) == len(texts)
    np.testing.assert_allclose(read, vectors, atol=0.01)  # in batches of other lengths
    assert [each.label for each in predictions] == [each.label for each in expected]


def test_the_share_that_labels_reach() -> None:
    random = np.random.default_rng(0)
    labels, centers = random.integers(0, 6, 4000), random.normal(size=(6, 40))
    vectors = (centers[labels] + 4 * random.normal(size=(4000, 40))).astype(np.float32)
    tests = vectors[3000:], labels[3000:]
    truth = [RidgeClassifier(alpha=0.3).fit(vectors[:n], labels[:n]).score(*tests) for n in (200, 1000, 3000)]
    first, second = (share_reached(vectors[:n], labels[:n].astype(str)) for n in (200, 1000))
    assert 0 < truth[0] / truth[2] - first < 0.15  # a linear model learns faster than 1 / sqrt(n)
    assert 0 < truth[1] / truth[2] - second < 0.15
    assert share_reached(vectors[:150], ["a"] * 149 + ["b"]) == 0


def test_one_text_of_each_group_is_chosen_and_none_that_is_certain() -> None:
    random = np.random.default_rng(0)
    centers = np.eye(6, dtype=np.float32)
    vectors = np.repeat(centers, 50, axis=0) + random.normal(0, 0.01, (300, 6)).astype(np.float32)
    assert sorted(choose(vectors, 6) // 50) == list(range(6))
    assert len(set(choose(np.ones((8, 2), np.float32), 5).tolist())) == 5
    shares = [0.5] * 100 + [1.0] * 200
    found = [SimpleNamespace(of_labels=None, probabilities={"a": share, "b": 1 - share}) for share in shares]
    model: Any = SimpleNamespace(predict_and_encode=lambda texts: (found, vectors))
    picked = pick(Rows.from_lists(["text"] * 300).texts, np.arange(300), 10, random, model)
    assert Counter(way for _, way in picked) == {"by model": 8, "at random": 2}
    assert {row // 50 for row, way in picked if way == "by model"} == {0, 1}


@pytest.mark.parametrize("texts", [["?!"], ["zebra", "zebra zebra"], ["\u200b", "a", "?"]])
def test_texts_of_few_words_are_picked(texts: list[str]) -> None:
    random = np.random.default_rng(0)
    picked = pick(Rows.from_lists(texts).texts, np.arange(len(texts)), len(texts), random)
    assert sorted(picked) == [(row, "by model") for row in range(len(texts))]


def test_refusals(zoo_command: Zoo, pool: Path) -> None:
    assert "use --n up to it" in refusal(zoo_command("suggest", "--input", pool, "--n", 5000))
    assert "n" in refusal(zoo_command("suggest", "--input", pool, "--n", 0))
    assert "--output" in refusal(zoo_command("suggest", "--input", pool, "--output", pool))
    assert ".csv file" in refusal(zoo_command("suggest", "--input", pool, "--output", "a.jsonl"))


def test_guesses_of_sets_are_compared_as_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty one is a guess, unless there was no model."""
    suggested = [
        ("at random", "a;b", "0.5"),
        ("at random", "", "0.9"),
        ("at random", "", ""),
        ("by model", "b", "0.5"),
    ]
    table = write_table(tmp_path / "t.csv", suggested, ("drawn", "likely_label", "probability"))
    _show_accuracy(str(table), Rows.from_lists(list("vxyz"), ["b; a", "a", "a", "b"], source="t"), ";")
    assert capsys.readouterr().out.startswith("50.0% ± 25.0% of the 2 texts drawn at random")
