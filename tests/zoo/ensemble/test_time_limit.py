"""A fit with a time limit, and the reference that it must be worth it against."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import zoo
from tests.zoo.conftest import LABELS, Fit, Zoo, read_csv, read_json, refusal
from tests.zoo.ensemble.conftest import SMALL, distinct_sentences
from zoo.ensemble.member import Readings, Sizes
from zoo.ensemble.members import BestOfSix
from zoo.layers.tfidf import NGramTfidf

SIZES = Sizes(len(LABELS), 4, 0, 0)


def test_late_steps_are_skipped_and_named(run: Fit, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the vote is fitted, which costs nothing; the loaded model answers by it, and can be fitted again."""
    folder = run("run", f"--model.transformer={tiny_bert}", "--time_limit=0.001")
    answer = read_json(folder / "answer.json")
    assert answer["weights"].keys() == {"lexical_vote"}
    skipped = next(note for note in answer["notes"] if note.startswith("Skipped for --time_limit"))
    for title in ("vectors of the transformer", "linear SVM of words", "best of six"):
        assert f"{title}" in skipped
    predictor = zoo.load(folder)
    prediction = predictor.predict([predictor.memory.rows.texts[0] + " and more"])[0]
    assert prediction.contributions.keys() == {"lexical_vote"}
    # Without clocks: a step that ends before the deadline is not skipped.
    monkeypatch.setattr("zoo.ensemble.base.time.monotonic", lambda: 0.0)
    model = predictor.model
    model.deadline = 2.0
    assert model.has_time("a step", 2.0)
    assert not model.has_time("a longer step", 2.1)
    assert model.skipped == ["a longer step (about 2 s, 2 left)"]


def test_limits_that_cannot_be_kept_are_refused(zoo_command: Zoo, train_csv: Path) -> None:
    options = [*SMALL, f"--data.train_file={train_csv}", "--run_dir=run"]
    for limit in ("0", "-1", ".inf"):
        refusal(zoo_command("fit", *options, f"--time_limit={limit}"), "use a positive number of seconds")
    result = zoo_command("fit", *options, "--model=TfidfSVM", "--time_limit=9")
    refusal(result, "a TfidfSVM is fitted in one step")


def test_epochs_end_with_the_time(train_csv: Path) -> None:
    options = {"time_limit": 0.001, "trainer": {"max_epochs": 1000}, "run_dir": "run"}
    zoo.fit(train_csv, model="FastText", validation_split=0.2, **options)
    epochs = [row["epoch"] for row in read_csv(Path("run/metrics.csv")) if row["val/accuracy"]]
    assert epochs == ["1"]


@pytest.mark.parametrize("number", [2, 3])
def test_the_best_of_six_is_that_of_scikit_learn(number: int) -> None:
    """Chosen and fitted by loops over scikit-learn's own pipelines."""
    pairs = distinct_sentences(90, seed=1, labels=LABELS[:number], noise=True)
    texts, target = [text for text, _ in pairs], np.array([sorted(LABELS).index(label) for _, label in pairs])
    held_out, others = np.split(np.random.default_rng(0).permutation(90), [18])
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit(texts)
    letters = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 5)).fit(texts)
    best, expected = -1, None
    for vectors in (
        np.hstack([words.transform(texts).toarray(), letters.transform(texts).toarray()]),
        words.transform(texts).toarray(),
        letters.transform(texts).toarray(),
    ):
        for classifier in (LinearSVC(C=0.5, random_state=0), LogisticRegression(C=10)):
            classifier.fit(vectors[others], target[others])
            right = int((classifier.predict(vectors[held_out]) == target[held_out]).sum())
            if right > best:
                best, expected = right, classifier.fit(vectors, target).predict(vectors)
    ngrams = NGramTfidf()
    readings = Readings(texts, ngrams.fit(texts))
    six = BestOfSix(SIZES)
    six.fit(readings, target)
    assert (six(readings).scores.argmax(dim=1).numpy() == expected).all()
    # Further fits use the same pipeline.
    again = BestOfSix(SIZES._replace(**six.chosen))
    again.fit(readings.select(others), target[others])
    assert again.chosen == six.chosen
