"""Classifiers without a network, against plain versions of the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.svm import LinearSVC

import zoo
from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.zoo.conftest import sentences, write_table
from tests.zoo.test_models import trainer
from zoo.baselines.reference_labels import Majority, NeighborVote, TfidfSVM
from zoo.tasks.classification.predictor import ClassificationPredictor

Pairs = Sequence[tuple[str, str]]


def fitted(folder: Path, model: Any, train: Pairs, **options: Any) -> ClassificationPredictor:
    """The model fitted to texts and labels, read back from its checkpoint."""
    table = write_table(folder / "train.csv", train)
    few = write_table(folder / "validation.csv", train[:2])
    data = ClassificationDataModule(
        train_file=str(table), validation_file=str(few), cache_dir=str(folder / "cache"), **options
    )
    run: pl.Trainer = trainer(folder)
    run.fit(model, datamodule=data)
    run.save_checkpoint(folder / "model.ckpt")
    predictor = zoo.load(folder / "model.ckpt")
    assert isinstance(predictor, ClassificationPredictor)
    return predictor


def labels_of(predictor: ClassificationPredictor, texts: list[str]) -> list[str]:
    return [prediction.label for prediction in predictor.predict(texts)]


def test_majority(tmp_path: Path) -> None:
    predictor = fitted(tmp_path, Majority(), [("a", "x"), ("b", "y"), ("c", "y"), ("d", "y")], num_memories=0)
    assert labels_of(predictor, ["a", "e"]) == ["y", "y"]
    assert predictor.predict("a")[0].probabilities == pytest.approx({"x": 0.25, "y": 0.75})


#: "x" has the one near neighbour, "y" several far ones, which share a frequent word.
NEAR_AND_FAR = [
    ("rare signal here", "x"),
    *((f"here filler{i} words{i} more{i}", "y") for i in range(3)),
    ("other", "z"),
]


@pytest.mark.parametrize(("power", "nearest"), [(3.0, "x"), (0.0, "y")])
def test_the_vote_weighs_neighbours_by_their_scores(tmp_path: Path, power: float, nearest: str) -> None:
    predictor = fitted(tmp_path, NeighborVote(score_power=power), NEAR_AND_FAR, num_memories=5)
    # The last text finds nothing: the most frequent class.
    assert labels_of(predictor, ["rare signal here", "here", "unheard"]) == [nearest, "y", "y"]


def test_the_vote_equals_a_plain_one(tmp_path: Path) -> None:
    train, queries = sentences(80, seed=5), [text for text, _ in sentences(20, seed=6)]
    predictor = fitted(tmp_path, NeighborVote(), train, num_memories=20)
    rows = Rows.from_lists(*zip(*train, strict=True))
    found = FolderMemory.build(rows, EmbeddedRetriever(), tmp_path / "plain").search(queries, 20)
    expected = []
    for numbers, scores in zip(found.rows, found.scores, strict=True):
        votes: Counter[str] = Counter()
        for number, score in zip(numbers, scores, strict=True):
            if number >= 0:
                votes[str(found.memories.label(int(number)))] += (float(score) / float(scores[0])) ** 3
        expected.append(votes.most_common(1)[0][0])
    assert labels_of(predictor, queries) == expected


def test_a_vote_needs_memories_with_the_texts_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"set --data\.num_memories"):
        NeighborVote().check_data(ClassificationDataModule(num_memories=0))
    plain = write_table(tmp_path / "memory.csv", [(text,) for text, _ in sentences(9, seed=1)], ("text",))
    with pytest.raises(InputError, match="no labels or another task's"):
        fitted(tmp_path, NeighborVote(), sentences(20, seed=2), memory=str(plain), num_memories=3)


def test_the_svm_learns_pairs_of_words(tmp_path: Path) -> None:
    # Only the order of the words tells the classes apart.
    train = [("not good but bad", "n"), ("good not but bad", "p")] * 5
    predictor = fitted(tmp_path, TfidfSVM(), train, num_memories=0)
    assert labels_of(predictor, ["not good", "good not"]) == ["n", "p"]


def test_the_svm_is_scikit_learns(tmp_path: Path) -> None:
    train, queries = sentences(90, seed=7), [text for text, _ in sentences(30, seed=8)]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    texts, labels = zip(*train, strict=True)
    machine = LinearSVC(C=0.5, random_state=0).fit(vectorizer.fit_transform(texts), labels)
    expected = machine.predict(vectorizer.transform(queries)).tolist()
    predictor = fitted(tmp_path, TfidfSVM(c=0.5), train, num_memories=0)
    assert labels_of(predictor, queries) == expected
    assert len(set(expected)) == 3


def test_impossible_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.max_ngram=0"):
        TfidfSVM(max_ngram=0)
    with pytest.raises(InputError, match="empty vocabulary"):
        fitted(tmp_path, TfidfSVM(), [("!", "a"), ("?", "b"), ("!!", "a"), ("??", "b")], num_memories=0)
