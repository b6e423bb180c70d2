"""Bags of words and n-grams against scikit-learn and plain loops; memories that decide, also by means of vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.datamodules.kinds import prepared
from tests.zoo.adapter import STRINGS
from tests.zoo.baselines.helpers import finished
from tests.zoo.baselines.test_references import fitted_to_texts, labels_of
from tests.zoo.conftest import sentences, write_table
from zoo.baselines.bag_of_words import WEIGHTS, BOWRocchio, NGrams, TfidfSVM
from zoo.baselines.word_averages import LINE, PTE, SkipGram

TRAIN, QUERIES = sentences(90, seed=7), [text for text, _ in sentences(30, seed=8)]


def test_the_svm_learns_pairs_of_words(tmp_path: Path) -> None:
    # The classes differ in the order of the words only.
    train = [("not good but bad", "n"), ("good not but bad", "p")] * 5
    predictor = fitted_to_texts(tmp_path, TfidfSVM(), train, num_memories=0)
    assert labels_of(predictor, ["not good", "good not"]) == ["n", "p"]


def test_the_svm_is_scikit_learns(tmp_path: Path) -> None:
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    texts, labels = zip(*TRAIN, strict=True)
    machine = LinearSVC(C=0.5, random_state=0).fit(vectorizer.fit_transform(texts), labels)
    expected = machine.predict(vectorizer.transform(QUERIES)).tolist()
    predictor = fitted_to_texts(tmp_path, TfidfSVM(c=0.5), TRAIN, num_memories=0)
    assert labels_of(predictor, QUERIES) == expected
    assert len(set(expected)) == 3


@pytest.mark.parametrize("tfidf", [False, True])
@pytest.mark.parametrize("labels", [("fruit", "metal"), ("fruit", "metal", "weather")])
def test_n_grams_are_scikit_learns(tmp_path: Path, tfidf: bool, labels: tuple[str, ...]) -> None:
    train = sentences(90, seed=7, labels=labels)
    texts, classes = zip(*train, strict=True)
    vectorizer = (TfidfVectorizer if tfidf else CountVectorizer)(ngram_range=(1, 3), max_features=120)
    regression = LogisticRegression(C=0.5, max_iter=1000).fit(vectorizer.fit_transform(texts), classes)
    expected = regression.predict_proba(vectorizer.transform(QUERIES))
    model = NGrams(max_ngram=3, max_features=120, tfidf=tfidf, c=0.5)
    predictions = fitted_to_texts(tmp_path, model, train, num_memories=0).predict(QUERIES)
    probabilities = [[prediction.probabilities[label] for label in labels] for prediction in predictions]
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert np.unique(expected.argmax(axis=1)).size == len(labels)


def expanded(
    texts: list[str], neighbors: list[list[str]], weight: float, vectorizer: TfidfVectorizer
) -> np.ndarray:
    """Equation 14, one text after the other."""
    rows = []
    for text, memories in zip(texts, neighbors, strict=True):
        own = vectorizer.transform([text]).toarray()[0]
        if memories:
            mean = sum(vectorizer.transform([memory]).toarray()[0] for memory in memories) / len(memories)
            own = (1 - weight) * own + weight * mean
        rows.append(own)
    return np.stack(rows)


def memories_of(texts: list[str], folder: Path, exclude_duplicates: bool = False) -> list[list[str]]:
    rows = Rows.from_lists(*zip(*TRAIN, strict=True))
    memory = FolderMemory.build(rows, EmbeddedRetriever(), folder)
    neighbors = memory.search(texts, 4 + len(TRAIN) * exclude_duplicates)
    hits = [[neighbors.memories.texts[int(row)] for row in rows if row >= 0] for rows in neighbors.rows]
    if exclude_duplicates:
        hits = [[hit for hit in own if hit != text][:4] for text, own in zip(texts, hits, strict=True)]
    return hits


def test_rocchio_is_equation_14(tmp_path: Path) -> None:
    texts, classes = map(list, zip(*TRAIN, strict=True))
    assert len({frozenset(text.split()) for text in texts}) == len(texts)  # no duplicates but a text itself
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts)
    train = expanded(texts, memories_of(texts, tmp_path / "train", exclude_duplicates=True), 0.4, vectorizer)
    queries = [*QUERIES, "unknown words"]
    test = expanded(queries, memories_of(queries, tmp_path / "test"), 0.4, vectorizer)
    machine = LinearSVC(C=0.5, random_state=0).fit(train, classes)
    model = BOWRocchio(weight=0.4, max_ngram=2, c=0.5)
    predictions = fitted_to_texts(tmp_path, model, TRAIN, num_memories=4).predict(queries)
    distances = machine.decision_function(test)
    shares = np.exp(distances) / np.exp(distances).sum(axis=1, keepdims=True)
    probabilities = [[each.probabilities[label] for label in machine.classes_] for each in predictions]
    np.testing.assert_allclose(probabilities, shares, atol=2e-3)
    assert [memory.weight for memory in predictions[0].memories] == pytest.approx([0.1] * 4)
    assert predictions[-1].memories == []


def test_the_weight_is_the_best_on_validation_rows(tmp_path: Path) -> None:
    """Only the memories' words indicate the labels."""
    train = [(f"key{i} the", "x" if i % 2 else "y") for i in range(40)]
    validation = [(f"key{i} the", "x" if i % 2 else "y") for i in range(40, 60)]
    memory = [(f"key{i} {'cross' if i % 2 else 'why'}",) for i in range(60)]
    files = {
        "train_file": str(write_table(tmp_path / "train.csv", train)),
        "validation_file": str(write_table(tmp_path / "validation.csv", validation)),
        "memory": str(write_table(tmp_path / "memory.csv", memory, ("text",))),
    }
    data = prepared(ClassificationDataModule(**files, num_memories=1))
    model = finished(BOWRocchio(), data)
    chosen = model.fitted["memory_weight"]
    assert chosen in WEIGHTS
    assert chosen > 0
    batch = data.dataset(data.split("validation"), STRINGS).__getitems__(range(20))
    assert (model(batch).logits.argmax(dim=1) == batch.target).all()


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (BOWRocchio(weight=0.5), 0.5),
        *((kind(word_size=12, epochs=200, expand="join"), 5 / 6) for kind in (SkipGram, LINE, PTE)),
    ],
)
def test_memories_decide_on_words_without_labels(tmp_path: Path, model: Any, share: float) -> None:
    texts = ["zzz apple pear plum apple", *(text for text, _ in TRAIN)]
    memory = write_table(tmp_path / "m.csv", [(text,) for text in texts], ("text",))
    predictor = fitted_to_texts(tmp_path, model, TRAIN, num_memories=1, memory=str(memory))
    [prediction] = predictor.predict("zzz")
    assert prediction.label == "fruit"
    assert [memory.text for memory in prediction.memories] == texts[:1]
    assert prediction.memories[0].weight == pytest.approx(share)


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        (NGrams(), "!?", "empty vocabulary"),
        (TfidfSVM(), "!?", "empty vocabulary"),
        (SkipGram(), " ", "no text has a word"),
    ],
)
def test_texts_without_words_are_refused(tmp_path: Path, model: Any, words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fitted_to_texts(tmp_path, model, [("", "a"), (words, "b")] * 2, num_memories=0)
