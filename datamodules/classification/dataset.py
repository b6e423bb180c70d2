"""Batches of labelled texts with their memories."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.batch import BatchContents, ClassificationBatch
from datamodules.core.types import Message
from datamodules.corpora.rows import Rows
from datamodules.dataset import rows_and_weights
from datamodules.text_rows import TextDataset, TextRowsDataModule, TextSplit

#: Class of an unknown label, before it is replaced by the number of classes.
UNKNOWN = -1
NO_TARGET = -100


class ClassificationDataset(TextDataset[ClassificationBatch]):
    """Batches of labelled texts with their memories."""

    def __init__(self, data: TextRowsDataModule[Any], split: TextSplit, contents: BatchContents) -> None:
        super().__init__(data, split, contents)
        labels = [*data.spec.labels, *contents.new_labels]
        targets = label_numbers(split.rows, labels)
        self.unknown_labels = int((targets == UNKNOWN).sum())
        self.targets = np.where(targets == UNKNOWN, len(labels), targets)
        self.memory_targets = np.array([NO_TARGET])
        if split.neighbors is not None:
            memory_labels = [*data.spec.memory_labels, *contents.new_labels]
            targets = label_numbers(split.neighbors.memories, memory_labels)
            # The last entry is the target of row -1 (no memory).
            self.memory_targets = np.append(np.where(targets == UNKNOWN, NO_TARGET, targets), NO_TARGET)

    @override
    def messages(self) -> Iterator[Message]:
        if self.unknown_labels:
            yield (
                logging.WARNING,
                f"{self.split.rows.source}: {self.unknown_labels} of {len(self)} rows have a label that training lacks;"
                " they count as errors",
            )

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> ClassificationBatch:
        row, _ = rows_and_weights(indices)
        fields, memories = self.read(indices)
        return ClassificationBatch(
            **fields,  # type: ignore[arg-type]
            memory_target=torch.from_numpy(self.memory_targets[memories]),
            target=torch.from_numpy(self.targets[row]),
        )


def label_numbers(rows: Rows, labels: Sequence[str]) -> NDArray[np.int64]:
    """The position of each row's label in `labels` [n]: -1 = unknown, -100 = the row has no label."""
    column = rows.table.column("label")
    positions = pc.fill_null(pc.index_in(column, value_set=pa.array(labels, pa.string())), UNKNOWN)
    numbers: NDArray[np.int64] = positions.to_numpy().astype(np.int64)
    numbers[pc.is_null(column).to_numpy()] = NO_TARGET
    return numbers
