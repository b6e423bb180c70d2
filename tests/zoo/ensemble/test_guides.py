"""Texts that are no rows: the classes' own words, and texts without labels."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import LABELS, Fit, Zoo, done, refusal, write_table
from tests.zoo.ensemble.conftest import SMALL, distinct_sentences
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import SelfTrained
from zoo.tasks.classification.guides import UNLABELLED, Guides, words_of


def fitted(
    centers: np.ndarray, rows: np.ndarray, target: list[int], guides: Guides | None
) -> tuple[SelfTrained, float]:
    """A member fitted to vectors, and its accuracy on texts around the centers."""
    random = np.random.default_rng(1)
    classes = np.repeat(np.arange(len(centers)), 200)
    texts = centers[classes] + random.normal(scale=0.9, size=(len(classes), centers.shape[1]))
    member = SelfTrained(Sizes(len(centers), 0, centers.shape[1], 0))
    vectors = torch.from_numpy(rows).float()
    member.fit(Readings([""] * len(rows), vectors=vectors, guides=guides), np.array(target))
    scores = member(Readings([""] * len(texts), vectors=torch.from_numpy(texts).float())).scores
    return member, float((scores.argmax(dim=1).numpy() == classes).mean())


def test_words_and_unlabelled_texts_help_where_labels_are_few() -> None:
    random = np.random.default_rng(0)
    centers = random.normal(size=(3, 16))
    rows = centers + random.normal(scale=2.0, size=centers.shape)
    named = torch.from_numpy(centers + random.normal(scale=1.5, size=centers.shape)).float()
    others = centers[random.integers(3, size=300)] + random.normal(scale=0.9, size=(300, 16))
    unlabelled = torch.from_numpy(others).float()
    only_named = Guides(["a", "b", "c"], np.arange(3), named)
    both = Guides(
        ["a", "b", "c", *map(str, range(300))],
        np.append(np.arange(3), np.full(300, UNLABELLED)),
        torch.cat([named, unlabelled]),
    )
    accuracies = [fitted(centers, rows, [0, 1, 2], guides)[1] for guides in (only_named, both)]
    assert accuracies[0] < accuracies[1] - 0.02
    assert accuracies[1] > 0.9


def test_classes_that_are_described_alone_count_alike() -> None:
    """However many texts describe a class, where no row is labelled."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(3, 16))
    described = np.repeat(np.arange(3), (1, 1, 12))
    others = random.integers(3, size=300)
    target = np.append(described, np.full(300, UNLABELLED))
    vectors = centers[np.append(described, others)] + random.normal(scale=0.9, size=(len(target), 16))
    guides = Guides([""] * len(target), target, torch.from_numpy(vectors).float(), stand_alone=True)
    assert fitted(centers, vectors[: len(described)], described.tolist(), guides)[1] > 0.9


def test_without_guides_the_scores_are_0() -> None:
    member, _ = fitted(np.eye(3), np.eye(3), [0, 1, 2], None)
    assert not member.linear.weight.any()


def test_names_that_mislead_are_left_out() -> None:
    """Names near to the rows of their class stay; one that is elsewhere goes, all go if they were mixed up."""
    random = np.random.default_rng(0)
    centers = np.eye(6, 16) + 1  # all texts are near to each other, and some classes to all texts
    centers[0] += 1
    centers = np.concatenate([centers, [4 * np.eye(6, 16)[:4].sum(axis=0) + 1]])
    target = np.repeat(np.arange(5), 8)
    vectors = centers[target] + random.normal(0, 0.2, (40, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = np.concatenate([centers / np.linalg.norm(centers, axis=1, keepdims=True), vectors[3:4]])

    def kept(names: list[int], classes: list[int]) -> tuple[list[str], list[str]]:
        texts = [*(f"name {number}" for number in names), "row 3"]
        encoded = torch.from_numpy(directions[[*names, 7]])
        left = Guides(texts, np.array([*classes, UNLABELLED]), encoded).without_misleading(vectors, target)
        assert left.texts[-1] == "row 3"
        own = [classes[names.index(int(text[5:]))] for text in left.texts[:-1]]
        assert left.target.tolist() == [*own, UNLABELLED]
        return left.texts[:-1], [text for text in texts if text not in left.texts]

    every = [f"name {number}" for number in range(6)]
    assert kept([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]) == (every, [])  # no row shows the last class
    assert kept([0, 1, 2, 3, 6], [0, 1, 2, 3, 4]) == (every[:4], ["name 6"])
    assert kept([0, 1, 2, 3, 4], [1, 2, 3, 4, 0]) == ([], every[:5])
    assert kept([2], [2]) == (every[2:3], [])
    assert kept([], []) == ([], [])


def test_texts_of_another_kind_are_left_out() -> None:
    """A tenth of strange texts is usual among texts of the rows' kind; where there are more, they are left out."""
    random = np.random.default_rng(0)

    def texts_near(place: int, count: int) -> np.ndarray:
        vectors = 2 * np.eye(16, dtype=np.float32)[place] + random.normal(0, 0.3, (count, 16))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    rows = texts_near(0, 40)
    for own, foreign, left_out in ((90, 10, 0), (60, 40, 40), (0, 40, 40)):
        vectors = np.concatenate([texts_near(2, 1), texts_near(0, own), texts_near(1, foreign)])
        texts = ["a name", *(["own"] * own), *(["foreign"] * foreign)]
        target = np.array([3, *[UNLABELLED] * (own + foreign)])
        kept = Guides(texts, target, torch.from_numpy(vectors)).without_foreign(rows)
        assert (kept.texts[0], kept.target.tolist()) == ("a name", [3, *[UNLABELLED] * (len(kept.texts) - 1)])
        assert np.shape(kept.vectors) == (len(kept.texts), 16)
        assert kept.texts.count("foreign") == foreign - left_out
        assert kept.texts.count("own") >= 0.8 * own


def test_the_words_of_a_label() -> None:
    labels = ["card_arrival", "Sci/Tech", "cardArrival", "c1", "0", "体育", "__"]
    assert [*map(words_of, labels)] == ["card arrival", "Sci Tech", "card Arrival", "", "", "体育", ""]


def test_an_ensemble_reads_names_and_texts_without_labels(
    run: Fit,
    tiny_bert: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = distinct_sentences(60, seed=3)
    table = write_table(tmp_path / "train.csv", rows[:40])
    texts = [*[(text,) for text, _ in rows[30:]], (rows[59][0].upper(),), (" ",)]
    pool = write_table(tmp_path / "pool.csv", texts, ["text"])
    described = write_table(tmp_path / "labels.csv", [("a thing to eat", rows[0][1]), rows[0], rows[39]])
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=1", "--data.validation_split=0"]
    options += [f"--data.unlabelled_file={pool}", f"--data.label_texts={described}"]
    # The encoder knows no words.
    monkeypatch.setattr("zoo.ensemble.fit.Guides.without_misleading", lambda guides, *_: guides)
    with caplog.at_level(logging.INFO, logger="zoo"):
        folder = run("run", *options, table=table)
    assert f"{pool}: 10 texts are train rows; they are skipped" in caplog.text
    assert f"{described}: 2 texts are train rows; they are skipped" in caplog.text
    assert "regression with class names and unlabelled texts" in (folder / "output.txt").read_text()
    for file in (pool, described, table):
        file.unlink()
    guides = zoo.load(folder).model.network.guides
    labels = zoo.load(folder).model.labels
    assert guides.texts == [*labels, "a thing to eat"]
    assert guides.target.tolist() == [*range(len(labels)), labels.index(rows[0][1])]


def test_names_and_texts_without_labels_alone(zoo_command: Zoo, tiny_bert: Path, tmp_path: Path) -> None:
    """Nothing is measured, and nothing that needs a measurement is answered, until labelled rows join the memory."""
    labelled = distinct_sentences(90, seed=3)
    described = write_table(tmp_path / "labels.csv", [(f"a {label}", label) for label in LABELS])
    pool = write_table(tmp_path / "pool.csv", labelled[:30])
    given = {"label_texts": described, "unlabelled_file": pool, "characters": False}
    model = zoo.fit(**given, model_options={"transformer": str(tiny_bert)}, run_dir=tmp_path / "run")
    assert (model.answer.lines, model.held_out) == ([], None)
    assert "from texts without labels, if given" in (tmp_path / "run" / "answer.md").read_text()
    (prediction,) = model.predict([labelled[0][0]])
    assert (set(prediction.probabilities), {*prediction.contributions}) == ({*LABELS}, {"self_trained"})
    with pytest.raises(InputError, match="has no held-out rows"):
        model.predict([labelled[0][0]], max_error=0.1)
    test = write_table(tmp_path / "test.csv", labelled[30:40])
    assert "without memory" in done(zoo_command("test", "--ckpt_path=run", f"--data.test_file={test}")).out
    rows = write_table(tmp_path / "rows.csv", labelled[30:])
    out = done(zoo_command("memory", "add", "run", rows, "--tune=true")).out
    assert re.search(r"accuracy 0\.\d+ on the 60 rows of the memory that they were fitted on", out)
    assert len(zoo.load("run").held_out.is_right) == 60  # which answer --max_error and the like
    arguments = [*SMALL, f"--data.label_texts={described}"]
    refusal(zoo_command("fit", *arguments), "data.train_file: name a table; from data.label_texts alone")
    arguments += [f"--model.transformer={tiny_bert}", f"--data.validation_file={test}"]
    refusal(zoo_command("fit", *arguments), "which validation_file")


@pytest.mark.parametrize(
    ("option", "rows", "message"),
    [
        ("label_texts", [("fish", "unheard")], "row 1: 'unheard' is no label of the training table"),
        ("label_texts", [(" ", "{0}")], "row 1 has no text"),
        ("label_texts", [("same", "{0}"), ("Same", "{1}")], "'same' is a text of the labels"),
        ("unlabelled_file", [("{text}", "x")], "no text that is new"),
    ],
)
def test_bad_files_are_named(
    zoo_command: Zoo, tiny_bert: Path, tmp_path: Path, option: str, rows: list[tuple[str, str]], message: str
) -> None:
    training = distinct_sentences(20, seed=0)
    labels = sorted({label for _, label in training})
    filled = [(text.format(text=training[0][0]), label.format(*labels)) for text, label in rows]
    file = write_table(tmp_path / "given.csv", filled)
    table = write_table(tmp_path / "train.csv", training)
    options = [f"--model.transformer={tiny_bert}", "--model.metric_steps=0", f"--data.{option}={file}"]
    arguments = ["fit", *SMALL, f"--data.train_file={table}", *options]
    refusal(zoo_command(*arguments), message)
    file.unlink()
    refusal(zoo_command(*arguments, "--run_dir=absent"), "given.csv: no such file")
    assert not Path("absent").exists()


def test_without_a_transformer_only_names_are_read(
    run: Fit, zoo_command: Zoo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = write_table(tmp_path / "pool.csv", distinct_sentences(5, seed=9))
    run("run", f"--data.unlabelled_file={pool}")
    assert "data.unlabelled_file has no effect: only the member self_trained" in caplog.text
    texts = [(f"unheard {word} word", label) for label, word in (("fruit", "durian"), ("metal", "osmium"))]
    columns = "sentence", "class"
    words = write_table(tmp_path / "words.csv", texts, columns)
    table = write_table(tmp_path / "train.csv", distinct_sentences(40, 0), columns)
    options = [f"--data.label_texts={words}", "--data.text_column=sentence", "--data.label_column=class"]
    model = zoo.load(run("named", *options, "--model.members=[named]", table=table))
    assert model.predict(["a durian"])[0].label == "fruit"
    assert model.predict(["some osmium"])[0].label == "metal"
    tested = done(zoo_command("test", "--ckpt_path=named", f"--data.test_file={words}"))
    assert "2 with a duplicate among the training rows" in tested.out


def test_many_rows_need_no_names(run: Fit, tmp_path: Path) -> None:
    """The rows of the table decide, of which folds have fewer."""
    for rows, skipped in ((170, {"named"}), (130, set[str]())):
        table = write_table(tmp_path / "rows.csv", distinct_sentences(rows, 0, ["fruit", "metal", "weather"]))
        options = "--model.members=[lexical,named]", "--data.validation_split=0"
        network = zoo.load(run(f"of_{rows}", *options, table=table)).model.network
        assert (network.skipped, network.pool.weights["all"].keys() | skipped) == (
            skipped,
            {"lexical", "named"},
        )
