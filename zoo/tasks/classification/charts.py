"""What a classifier does with rows whose labels are known: which class it takes for which, and what memories give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from callbacks.chart import Chart
from zoo.tasks.classification.predictor import Prediction

#: Classes and texts that a picture shows; of classes, the table has all.
MOST_CLASSES = 30
MOST_TEXTS = 30


def charts_of(
    predictions: Sequence[Prediction], labels: Sequence[str | None], weight: str = "weight"
) -> Iterator[Chart]:
    """Charts of predictions beside the right labels.

    Args:
        predictions: of one model.
        labels: the right one of each text.
        weight: what the weights of its memories are.
    """
    yield from _of_classes(predictions, [str(label) for label in labels])
    places = max((len(prediction.memories) for prediction in predictions), default=0)
    if not places:
        return
    yield _attention_by_rank(predictions, places, weight)
    yield _attention_map(predictions, labels, places, weight)
    if any(memory.label is not None for prediction in predictions for memory in prediction.memories):
        yield _same_label(predictions, labels, places)


def _of_classes(predictions: Sequence[Prediction], right: Sequence[str]) -> Iterator[Chart]:
    """Which class is taken for which; the classes' precision and recall. Classes are in the data's order."""
    predicted = [prediction.label for prediction in predictions]
    pairs, rows, found = Counter(zip(right, predicted, strict=True)), Counter(right), Counter(predicted)
    known = predictions[0].probabilities if predictions else ()
    classes = list(dict.fromkeys([*known, *right]))  # those that training lacks come last
    shown, which = None, ""
    if len(classes) > MOST_CLASSES:
        shown = sorted(classes, key=lambda name: -rows[name])[:MOST_CLASSES]
        which = f", the largest {MOST_CLASSES} of {len(classes)} classes"
    yield Chart(
        "confusion",
        f"Which class is taken for which{which}",
        ["label", *classes],
        [[name, *(pairs[name, other] for other in classes)] for name in classes],
        "map",
        value="texts",
        across="predicted",
        shown=shown,
    )
    yield Chart(
        "classes",
        f"Precision and recall{which}",
        ["label", "precision", "recall"],
        [
            [name, pairs[name, name] / max(1, found[name]), pairs[name, name] / max(1, rows[name])]
            for name in classes
        ],
        "bars",
        value="share of the texts",
        shown=shown,
    )


def _attention_by_rank(predictions: Sequence[Prediction], places: int, weight: str) -> Chart:
    """The mean of a memory's share of the weight, by its rank; of texts that have a memory there."""
    shares = np.full((len(predictions), places), np.nan)
    for row, prediction in enumerate(predictions):
        weights = np.abs([memory.weight for memory in prediction.memories])
        shares[row, : len(weights)] = weights / max(weights.sum(initial=0.0), 1e-30)
    value = f"share of the {weight}"
    lines: list[list[Any]] = [
        [rank, float(np.nanmean(column))]
        for rank, column in enumerate(shares.T, start=1)
        if not np.isnan(column).all()
    ]
    return Chart(
        "attention_by_rank", f"Memories' {value}, by rank", ["rank", value], lines, "lines", value=value
    )


def _attention_map(
    predictions: Sequence[Prediction], labels: Sequence[str | None], places: int, weight: str
) -> Chart:
    lines: list[list[Any]] = []
    same: list[list[int]] = []
    looked_at = [pair for pair in zip(predictions, labels, strict=True) if pair[0].memories]
    for prediction, label in looked_at[:MOST_TEXTS]:
        weights = [memory.weight for memory in prediction.memories]
        lines.append([prediction.text, *weights, *[None] * (places - len(weights))])
        same.append([place for place, memory in enumerate(prediction.memories) if memory.label == label])
    return Chart(
        "attention",
        f"The {weight} of each memory, of the first {len(lines)} texts that have some",
        ["text", *(str(rank) for rank in range(1, places + 1))],
        lines,
        "map",
        value=weight,
        across="rank of the memory",
        mark="has the text's label",
        marked=same,
    )


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
    return Chart("retrieval", "What the retriever finds, by rank", columns, lines, "lines", value="share")
