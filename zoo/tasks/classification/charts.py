"""Charts of a classifier's memories: their weights, and how often they have the right label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from callbacks.chart import Cell, Chart
from zoo.tasks.classification.predictor import Prediction

#: Texts in a chart of single texts.
MOST_TEXTS = 30


def charts_of(
    predictions: Sequence[Prediction], labels: Sequence[str | None], weight: str = "weight"
) -> Iterator[Chart]:
    """Charts of the memories behind predictions, with the right labels; none for a model without memories."""
    ranks = max((len(prediction.memories) for prediction in predictions), default=0)
    if not ranks:
        return
    yield _attention_map(predictions, labels, ranks, weight)
    if any(memory.label is not None for prediction in predictions for memory in prediction.memories):
        yield _same_label(predictions, labels, ranks)


def _attention_map(
    predictions: Sequence[Prediction], labels: Sequence[str | None], ranks: int, weight: str
) -> Chart:
    """The weight of each memory of the first texts, memories with the right label marked."""
    rows: list[list[Cell]] = []
    same: list[list[int]] = []
    with_memories = [pair for pair in zip(predictions, labels, strict=True) if pair[0].memories]
    for prediction, label in with_memories[:MOST_TEXTS]:
        weights = [memory.weight for memory in prediction.memories]
        rows.append([prediction.text, *weights, *[None] * (ranks - len(weights))])
        same.append([rank for rank, memory in enumerate(prediction.memories) if memory.label == label])
    return Chart(
        "attention",
        f"The {weight} of each memory, for {len(rows)} texts",
        ["text", *(str(rank) for rank in range(1, ranks + 1))],
        rows,
        "map",
        value=weight,
        across="rank of the memory",
        mark="has the text's label",
        marked=same,
    )


def _same_label(predictions: Sequence[Prediction], labels: Sequence[str | None], ranks: int) -> Chart:
    """The share of memories with the text's label at each rank, and of texts with such a memory up to the rank."""
    same = np.zeros((len(predictions), ranks), dtype=bool)
    counts = np.zeros(ranks)
    for row, (prediction, label) in enumerate(zip(predictions, labels, strict=True)):
        same[row, : len(prediction.memories)] = [memory.label == label for memory in prediction.memories]
        counts[: len(prediction.memories)] += 1
    share = same.sum(axis=0) / np.maximum(counts, 1)
    hits = np.logical_or.accumulate(same, axis=1).mean(axis=0)
    columns = ["rank", "memories with the text's label", "texts with such a memory up to here"]
    rows = list(zip(range(1, ranks + 1), share.tolist(), hits.tolist(), strict=True))
    return Chart("retrieval", "Labels of the memories, by rank", columns, rows, "lines", value="share")
