"""Reference classifiers and scores of pairs against plain versions, by hand and by brute force."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import ClassificationDataModule, MatchingDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.zoo.baselines.helpers import fit_and_load
from tests.zoo.conftest import sentences, trainer, write_pairs, write_table
from zoo.baselines.references import (
    Majority,
    NeighborVote,
    PairBM25,
    RandomOrder,
    WordOverlap,
    best_threshold,
)
from zoo.tasks.base import Task
from zoo.tasks.classification.predictor import ClassificationPredictor
from zoo.tasks.matching.predictor import MatchingPredictor

Texts = Sequence[tuple[str, str]]


def fitted_to_texts(folder: Path, model: Task, train: Texts, **options: Any) -> ClassificationPredictor:
    """The predictor of a model that is fitted to texts and labels, and loaded from its checkpoint."""
    table = write_table(folder / "train.csv", train)
    few = write_table(folder / "validation.csv", train[:2])
    data = ClassificationDataModule(train_file=str(table), validation_file=str(few), **options)
    return fit_and_load(folder, model, data)


def labels_of(predictor: ClassificationPredictor, texts: list[str]) -> list[str]:
    return [prediction.label for prediction in predictor.predict(texts)]


def test_majority(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights yet"):
        _ = Majority().fitted
    train = [("a", "x"), ("b", "y"), ("c", "y"), ("d", "y")]
    predictor = fitted_to_texts(tmp_path, Majority(), train, num_memories=0)
    assert labels_of(predictor, ["a", "e"]) == ["y", "y"]
    assert predictor.predict("a")[0].probabilities == pytest.approx({"x": 0.25, "y": 0.75})


def test_the_vote_equals_a_plain_one(tmp_path: Path) -> None:
    # Of the memories of "rare signal here", one near metal has more weight than three far fruits.
    far = [(f"here filler{i} words{i} more{i}", "fruit") for i in range(3)]
    train = [*sentences(80, seed=5), ("rare signal here", "metal"), *far]
    # The last text retrieves nothing: the most frequent class.
    queries = [*(text for text, _ in sentences(20, seed=6)), "rare signal here", "unheard"]
    predictor = fitted_to_texts(tmp_path, NeighborVote(), train, num_memories=20)
    rows = Rows.from_lists(*zip(*train, strict=True))
    neighbors = FolderMemory.build(rows, EmbeddedRetriever(), tmp_path / "plain").search(queries, 20)
    expected = []
    for numbers, scores in zip(neighbors.rows, neighbors.scores, strict=True):
        votes: Counter[str] = Counter()
        for number, score in zip(numbers, scores, strict=True):
            if number >= 0:
                votes[str(neighbors.memories.label(int(number)))] += (float(score) / float(scores[0])) ** 3
        expected.append(max(votes, key=votes.__getitem__, default="fruit"))
    assert labels_of(predictor, queries) == expected


def test_a_vote_needs_memories_with_the_texts_labels(tmp_path: Path) -> None:
    plain = write_table(tmp_path / "memory.csv", [(text,) for text, _ in sentences(9, seed=1)], ("text",))
    with pytest.raises(InputError, match="no labels or another task's"):
        fitted_to_texts(tmp_path, NeighborVote(), sentences(20, seed=2), memory=str(plain), num_memories=3)


#: Two distinct second texts with words, of 3 and 5 words; "cat" is in one of them.
TRAIN = [("cat", "the cat sat", 1), ("cat", "the dog ran far away", 0), ("dog", "the cat sat", 0)]
PAIRS = [("The cat, a cat!", "cat cat dog"), ("dog", ""), ("", "dog"), ("bird", "the cat")]


def fitted_to_pairs(
    folder: Path, model: Task, rows: list[tuple[str, str, int]], **options: Any
) -> MatchingPredictor:
    """The predictor of a model that is fitted to the pairs, and loaded from its checkpoint."""
    table = write_pairs(folder / "train.tsv", rows)
    data = MatchingDataModule(train_file=str(table), validation_file=str(table), **options)
    return fit_and_load(folder, model, data)


def scores_of(predictor: MatchingPredictor) -> list[float]:
    return [prediction.score for prediction in predictor.predict(PAIRS)]


def test_word_overlap_is_a_share_of_the_first_texts_words(tmp_path: Path) -> None:
    # "the", "cat", ",", "a", "!": one of five.
    assert scores_of(fitted_to_pairs(tmp_path, WordOverlap(), TRAIN)) == pytest.approx([1 / 5, 0, 0, 0])


def test_bm25_by_hand(tmp_path: Path) -> None:
    # "cat" is twice in the query and twice in the document's three words.
    base = 1.2 * (1 - 0.75 + 0.75 * 3 / 4)
    of_cat = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5)) * 2.2 * 2 / (2 + base)
    of_the = math.log(1 + (2 - 2 + 0.5) / (2 + 0.5)) * 2.2 / (1 + 1.2 * (1 - 0.75 + 0.75 * 2 / 4))
    predictor = fitted_to_pairs(tmp_path, PairBM25(), TRAIN)
    assert scores_of(predictor) == pytest.approx([2 * of_cat, 0, 0, 0], rel=1e-5)
    assert predictor.predict([("the bird", "the cat")])[0].score == pytest.approx(of_the, rel=1e-5)


def test_random_order_has_one_tie(tmp_path: Path) -> None:
    rows = [("a", "x", 1), ("a", "y", 0), ("a", "z", 0), ("b", "x", 0), ("b", "y", 1)]
    predictor = fitted_to_pairs(tmp_path, RandomOrder(), rows)
    data = MatchingDataModule(test_file=str(tmp_path / "train.tsv"))
    (metrics,) = trainer(tmp_path).test(predictor.model, datamodule=data, verbose=False)
    assert metrics["test/map"] == pytest.approx(((1 + 1 / 2 + 1 / 3) / 3 + (1 + 1 / 2) / 2) / 2)
    assert metrics["test/p@1"] == pytest.approx((1 / 3 + 1 / 2) / 2)


@pytest.mark.parametrize("model", [WordOverlap, PairBM25])
def test_pairs_are_classified_by_the_best_threshold_of_the_training(model: Any, tmp_path: Path) -> None:
    rows = [(f"a b c d{i}", f"a b c e{i}", 1) for i in range(6)]
    rows += [(f"a b c d{i}", f"a x y z{i}", 0) for i in range(6)]
    predictor = fitted_to_pairs(tmp_path, model(), rows, goal="classification")
    predictions = predictor.predict([("a b c q", "a b c r"), ("a b c q", "a s t u")])
    assert [each.score > 0 for each in predictions] == [True, False]
    assert [each.probability > 0.5 for each in predictions] == [True, False]  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    score, target = random.integers(0, 5, 30).astype(float), random.integers(0, 2, 30).astype(float)
    correct = {t: ((score > t) == (target > 0)).sum() for t in [-1, *np.arange(-0.5, 6)]}
    threshold = best_threshold(score, target)
    assert ((score > threshold) == (target > 0)).sum() == max(correct.values())
    assert best_threshold(score, np.ones(30)) < score.min()
    assert best_threshold(np.zeros(3), np.array([0.0, 0.0, 1.0])) > 0
    assert best_threshold(np.zeros(0), np.zeros(0)) == 0
