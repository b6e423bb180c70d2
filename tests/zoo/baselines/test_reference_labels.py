"""Reference classifiers against plain versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from tests.zoo.baselines.helpers import fit_and_load
from tests.zoo.conftest import sentences, write_table
from zoo.baselines.reference_labels import Majority, NeighborVote
from zoo.tasks.base import Task
from zoo.tasks.classification.predictor import ClassificationPredictor

Pairs = Sequence[tuple[str, str]]


def fitted(folder: Path, model: Task, train: Pairs, **options: Any) -> ClassificationPredictor:
    """The predictor of a model that is fitted to texts and labels, and loaded from its checkpoint."""
    table = write_table(folder / "train.csv", train)
    few = write_table(folder / "validation.csv", train[:2])
    data = ClassificationDataModule(
        train_file=str(table), validation_file=str(few), cache_dir=str(folder / "cache"), **options
    )
    predictor = fit_and_load(folder, model, data)
    assert isinstance(predictor, ClassificationPredictor)
    return predictor


def labels_of(predictor: ClassificationPredictor, texts: list[str]) -> list[str]:
    return [prediction.label for prediction in predictor.predict(texts)]


def test_majority(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights yet"):
        _ = Majority().fitted
    predictor = fitted(tmp_path, Majority(), [("a", "x"), ("b", "y"), ("c", "y"), ("d", "y")], num_memories=0)
    assert labels_of(predictor, ["a", "e"]) == ["y", "y"]
    assert predictor.predict("a")[0].probabilities == pytest.approx({"x": 0.25, "y": 0.75})


#: "x" has one near neighbor, "y" several far ones with a frequent word.
NEAR_AND_FAR = [
    ("rare signal here", "x"),
    *((f"here filler{i} words{i} more{i}", "y") for i in range(3)),
    ("other", "z"),
]


def test_votes_are_weighted_by_scores(tmp_path: Path) -> None:
    predictor = fitted(tmp_path, NeighborVote(), NEAR_AND_FAR, num_memories=5)
    # The last text retrieves nothing: the most frequent class.
    assert labels_of(predictor, ["rare signal here", "here", "unheard"]) == ["x", "y", "y"]


def test_the_vote_equals_a_plain_one(tmp_path: Path) -> None:
    train, queries = sentences(80, seed=5), [text for text, _ in sentences(20, seed=6)]
    predictor = fitted(tmp_path, NeighborVote(), train, num_memories=20)
    rows = Rows.from_lists(*zip(*train, strict=True))
    neighbors = FolderMemory.build(rows, EmbeddedRetriever(), tmp_path / "plain").search(queries, 20)
    expected = []
    for numbers, scores in zip(neighbors.rows, neighbors.scores, strict=True):
        votes: Counter[str] = Counter()
        for number, score in zip(numbers, scores, strict=True):
            if number >= 0:
                votes[str(neighbors.memories.label(int(number)))] += (float(score) / float(scores[0])) ** 3
        expected.append(votes.most_common(1)[0][0])
    assert labels_of(predictor, queries) == expected


def test_a_vote_needs_memories_with_the_texts_labels(tmp_path: Path) -> None:
    plain = write_table(tmp_path / "memory.csv", [(text,) for text, _ in sentences(9, seed=1)], ("text",))
    with pytest.raises(InputError, match="no labels or another task's"):
        fitted(tmp_path, NeighborVote(), sentences(20, seed=2), memory=str(plain), num_memories=3)
