"""What a classifier does with rows whose labels are known: which class it takes for which, and what memories give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from callbacks.charts import Chart
from zoo.tasks.classification_predictor import Prediction

#: Classes and texts that a chart shows.
MOST_CLASSES = 30
MOST_TEXTS = 30


def charts_of(predictions: Sequence[Prediction], labels: Sequence[str | None]) -> Iterator[Chart]:
    """Charts of predictions beside the right labels."""
    yield from _of_classes([prediction.label for prediction in predictions], [str(label) for label in labels])
    places = max((len(prediction.memories) for prediction in predictions), default=0)
    if not places:
        return
    yield _attention_by_rank(predictions, places)
    yield _attention_map(predictions[:MOST_TEXTS], places)
    if any(memory.label is not None for prediction in predictions for memory in prediction.memories):
        yield _same_label(predictions, labels, places)


def _of_classes(predicted: Sequence[str], right: Sequence[str]) -> Iterator[Chart]:
    """Which class is taken for which, of the most frequent ones; their precision and recall."""
    pairs, rows, found = Counter(zip(right, predicted, strict=True)), Counter(right), Counter(predicted)
    classes = sorted(name for name, _ in (rows + found).most_common(MOST_CLASSES))
    counts: list[list[Any]] = [[name, *(pairs[name, other] for other in classes)] for name in classes]
    yield Chart(
        "confusion", "Texts of a class (down) taken for a class (across)", ["label", *classes], counts, "map"
    )
    scores: list[list[Any]] = [
        [name, pairs[name, name] / max(1, found[name]), pairs[name, name] / max(1, rows[name])]
        for name in classes
    ]
    yield Chart("classes", "Precision and recall", ["label", "precision", "recall"], scores, "bars")


def _attention_by_rank(predictions: Sequence[Prediction], places: int) -> Chart:
    """The mean of a memory's share of the weight, by its rank; of texts that have a memory there."""
    shares = np.full((len(predictions), places), np.nan)
    for row, prediction in enumerate(predictions):
        weights = np.abs([memory.weight for memory in prediction.memories])
        shares[row, : len(weights)] = weights / max(weights.sum(initial=0.0), 1e-30)
    lines: list[list[Any]] = [
        [rank, float(np.nanmean(column))]
        for rank, column in enumerate(shares.T, start=1)
        if not np.isnan(column).all()
    ]
    return Chart(
        "attention_by_rank",
        "What memories count for, by rank",
        ["rank", "share of the weight"],
        lines,
        "lines",
    )


def _attention_map(predictions: Sequence[Prediction], places: int) -> Chart:
    lines: list[list[Any]] = []
    for prediction in predictions:
        weights = [memory.weight for memory in prediction.memories]
        lines.append([prediction.text, *weights, *[0.0] * (places - len(weights))])
    ranks = [str(rank) for rank in range(1, places + 1)]
    return Chart("attention", "What each memory counts for", ["text", *ranks], lines, "map")


def _same_label(predictions: Sequence[Prediction], labels: Sequence[str | None], places: int) -> Chart:
    """Of the memories at a rank, the share with the text's label; of the texts, the share with one up to the rank."""
    same = np.zeros((len(predictions), places), dtype=bool)
    there = np.zeros(same.shape, dtype=bool)
    for row, (prediction, label) in enumerate(zip(predictions, labels, strict=True)):
        for place, memory in enumerate(prediction.memories):
            there[row, place] = True
            same[row, place] = memory.label == label
    hit = np.logical_or.accumulate(same, axis=1).mean(axis=0)
    share = same.sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    lines: list[list[Any]] = [
        [rank, float(one), float(other)]
        for rank, (one, other) in enumerate(zip(share, hit, strict=True), start=1)
    ]
    columns = ["rank", "memories with the text's label", "texts with such a memory up to here"]
    return Chart("retrieval", "What the retriever finds, by rank", columns, lines, "lines")
