"""Labels of texts that need no training of ours: what a classifier must beat to have learned anything.

A function takes the labelled training rows and the rows to label; it returns a label a row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from datamodules.corpora.table import Rows
from datamodules.retrieval import EmbeddedRetriever, FolderMemory
from zoo.growth import labels_of


def majority(train: Rows, queries: Rows) -> list[str]:
    """The most frequent training label for every text."""
    labels, counts = np.unique(labels_of(train), return_counts=True)
    return [str(labels[counts.argmax()])] * len(queries)


def bm25_vote(train: Rows, queries: Rows, k: int = 20, power: float = 3.0) -> list[str]:
    """The label with most votes among the k best training texts by BM25.

    A neighbour's vote weighs (score / best score) ** power. A text that finds none gets the most frequent
    training label.
    """
    with tempfile.TemporaryDirectory() as folder:
        memory = FolderMemory.build(train, EmbeddedRetriever(), Path(folder) / "memory", progress=False)
        found = memory.search(queries.texts[:], min(k, len(train)))
    names, numbers = np.unique(labels_of(found.memories), return_inverse=True)
    weight = (found.scores / found.scores[:, :1].clip(min=1e-6)) ** power * (found.rows >= 0)
    votes = np.zeros((len(queries), len(names)))
    for i in range(found.rows.shape[1]):
        np.add.at(votes, (np.arange(len(queries)), numbers[found.rows[:, i]]), weight[:, i])
    otherwise = majority(train, queries)
    return [
        str(names[best]) if any_vote else fallback
        for best, any_vote, fallback in zip(
            votes.argmax(axis=1), votes.sum(axis=1) > 0, otherwise, strict=True
        )
    ]


def tfidf_svm(train: Rows, queries: Rows) -> list[str]:
    """TF-IDF of words and pairs of words (1 + log tf) with a linear support vector machine."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # seconds, that other commands need not pay
    from sklearn.svm import LinearSVC

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = LinearSVC(random_state=0).fit(vectorizer.fit_transform(train.texts), labels_of(train))
    return [str(label) for label in classifier.predict(vectorizer.transform(queries.texts))]


SIMPLE_LABELS: dict[str, Callable[[Rows, Rows], list[str]]] = {
    "majority": majority,
    "bm25": bm25_vote,
    "svm": tfidf_svm,
}


def label_metrics(name: str, splits: Mapping[str, Rows]) -> dict[str, float]:
    """Accuracy and macro-F1 on validation and test rows.

    Args:
        name: one of `SIMPLE_LABELS`.
        splits: `train`, and `validation` or `test` or both.
    """
    from sklearn.metrics import accuracy_score, f1_score

    metrics = {}
    for key, split in (("val", "validation"), ("test", "test")):
        if split in splits:
            predicted, true = SIMPLE_LABELS[name](splits["train"], splits[split]), labels_of(splits[split])
            metrics[f"{key}/accuracy"] = float(accuracy_score(true, predicted))
            metrics[f"{key}/macro_f1"] = float(f1_score(true, predicted, average="macro", zero_division=0))
    return metrics
