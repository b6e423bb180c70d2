"""Inputs of an ensemble's members for whole tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.batch import BatchContents
from datamodules.text_rows import TextRowsDataModule, TextSplit
from zoo.ensemble.base import EnsembleModel
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.network import EnsembleNetwork
from zoo.tasks.predictor import evaluating, on_device

#: Rows that are read together.
_ROWS = 256


def read_table(
    model: EnsembleModel,
    data: TextRowsDataModule[Any],
    split: TextSplit,
    inputs: set[Input],
    network: EnsembleNetwork | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Readings:
    """The inputs of members for some rows of a table, or all, on the CPU, by the model's network or another one."""
    network = network or model.network
    rows = np.arange(len(split.rows)) if rows is None else rows
    texts = split.rows.texts.take(rows)
    vectors = None
    if "vectors" in inputs and not network.learns_by_gradients:
        memory = network.memory
        vectors = torch.from_numpy(model.encode(data, texts) if memory is None else memory.vectors_of(texts))
        inputs = inputs - {"vectors"}
    readings = Readings(texts)
    if len(rows) and inputs & {"vectors", "bags", "neighbors"}:
        contents = BatchContents(memory_texts=False, new_labels=model.new_labels)
        dataset = data.dataset(split, contents)
        with evaluating(model):
            batches = (on_device(batch, model) for batch in dataset.batches(_ROWS, rows))
            readings = Readings.join([network.read(batch, inputs - {"memory"}) for batch in batches])
    readings = readings._replace(texts=texts)
    return readings if vectors is None else readings._replace(vectors=vectors)
