"""Inputs and outputs of an ensemble's members for whole tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from datamodules.batch import BatchContents
from datamodules.text_rows import TextSplit
from zoo.ensemble.member import Input, Readings
from zoo.ensemble.network import EnsembleNetwork
from zoo.ensemble.outputs import Outputs
from zoo.tasks.predictor import evaluating, on_device

if TYPE_CHECKING:
    from zoo.ensemble.model import MemoryEnsemble

#: Rows that are read and classified together.
_ROWS = 256


def read_table(
    model: MemoryEnsemble,
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
        vectors = torch.from_numpy(model.encode(texts) if memory is None else memory.vectors_of(texts))
        inputs = inputs - {"vectors"}
    readings = Readings(texts)
    if len(rows) and inputs & {"vectors", "bags", "neighbors"}:
        contents = BatchContents(memory_texts=False, new_labels=model.new_labels)
        dataset = model.model_data.dataset(split, contents)
        with evaluating(model):
            batches = (on_device(batch, model) for batch in dataset.batches(_ROWS, rows))
            readings = Readings.join([network.read(batch, inputs - {"memory"}) for batch in batches])
    readings = readings._replace(texts=texts)
    return readings if vectors is None else readings._replace(vectors=vectors)


def classify_table(
    network: EnsembleNetwork, readings: Readings, names: Iterable[str], device: torch.device
) -> dict[str, Outputs]:
    """The outputs of members for a table's inputs, of at least one text, on the CPU."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(readings.texts), _ROWS):
            block = np.arange(start, min(start + _ROWS, len(readings.texts)))
            parts.append(network.classify(readings.select(block).to(device), names))
    return {name: type(first).join([part[name] for part in parts]) for name, first in parts[0].items()}
