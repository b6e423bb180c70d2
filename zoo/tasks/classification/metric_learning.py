"""Tuning the pre-trained encoder of a classifier before anything else is fitted; see `zoo.training.metric`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.classification.dataset import label_numbers
from datamodules.core.errors import InputError
from datamodules.retrieval import Neighbors
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.tasks.classification.task import ClassificationTask
from zoo.tasks.encoders import ReadsTransformer
from zoo.tasks.predictor import on_device
from zoo.training.metric import MetricPlan, learn_metric, steps_for


class LearnsMetric(ReadsTransformer, ClassificationTask):
    """A classifier whose pre-trained encoder can be tuned first, until texts of one class are neighbors."""

    def __init__(self, metric_steps: int | None = 0, metric_layers: int | None = None, **shared: Any) -> None:
        """Choose the tuning.

        Args:
            metric_steps: steps in which the `transformer` is tuned by the classes of the training rows, before anything
                else is fitted; 0 = none, None = chosen by the number of rows.
            metric_layers: number of its upper layers that are tuned; None = half of them. With
                `lora_rank`, their adapters are tuned.
            **shared: options of `ReadsTransformer` and the task.
        """
        super().__init__(**shared)
        self.metric_steps, self.metric_layers = metric_steps, metric_layers
        if (metric_steps or 0) < 0 or (metric_layers is not None and metric_layers < 1):
            raise InputError(
                f"model.metric_steps={metric_steps}, model.metric_layers={metric_layers}: use at least 0, and 1"
            )
        if metric_steps and self.transformer is None:
            raise InputError("model.metric_steps tunes a transformer: name one with --model.transformer")

    def metric_plan(self, num_rows: int) -> MetricPlan | None:
        """The tuning for n training rows; None if there is none."""
        steps = steps_for(num_rows) if self.metric_steps is None else self.metric_steps
        return MetricPlan(steps, layers=self.metric_layers) if self.transformer and steps else None

    def tune_encoder(
        self,
        data: TextRowsDataModule[Any],
        split: TextSplit,
        target: NDArray[np.int64],
        plan: MetricPlan,
        rows: NDArray[np.int64],
    ) -> None:
        """Tune the encoder, in place, on some rows of a split; `target` [n] has the classes of all of them."""
        rivals = None if split.neighbors is None else rivals_of(split.neighbors, target, self.labels)
        dataset = data.dataset(split, BatchContents(memory_texts=False))

        def read(positions: NDArray[np.int64]) -> ClassificationBatch:
            batch: ClassificationBatch = on_device(dataset.__getitems__(rows[positions]), self)
            return batch

        # The stage is none of Lightning's steps, which would have this precision by themselves.
        precision = None if self._trainer is None else str(self.trainer.precision)
        learn_metric(self.network.encoder, read, target[rows], plan, data.seed, rivals, precision=precision)


def rivals_of(neighbors: Neighbors, target: NDArray[np.int64], labels: list[str]) -> NDArray[np.int64] | None:
    """How often texts of a class retrieved memories of another [C, C]; None for memories without labels.

    Args:
        neighbors: of n texts.
        target: int64 [n], their classes.
        labels: of the C classes.
    """
    if neighbors.memories.labels is None:
        return None
    # Row -1 (no memory) reads the appended -1.
    classes = np.append(label_numbers(neighbors.memories, labels), -1)[neighbors.rows]  # [n, k]
    texts, places = np.nonzero(classes >= 0)
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (target[texts], classes[texts, places]), 1)
    return counts
