"""Batches of labelled texts with their memories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from datamodules.batch import ClassificationBatch
from datamodules.corpora.rows import Rows
from datamodules.text_rows import TextReader, TextRowsDataModule, TextSplit

#: Class of a label that the model does not know, before it is replaced by the number of classes.
UNKNOWN = -1
NO_TARGET = -100


class ClassificationDataset(Dataset[ClassificationBatch]):
    """Row numbers in, a finished batch out."""

    def __init__(self, data: TextRowsDataModule, split: TextSplit) -> None:
        """Bind a split to the vocabulary and the labels in use.

        Args:
            data: with its spec.
            split: texts and neighbours.
        """
        self.split = split
        self.reader = TextReader(data, split)
        labels = [*data.spec.labels, *data.new_labels]
        targets = label_numbers(split.rows, labels)
        self.unknown_labels = int((targets == UNKNOWN).sum())
        self.targets = np.where(targets == UNKNOWN, len(labels), targets)
        self.memory_targets = np.array([NO_TARGET])
        if split.neighbors is not None:
            memory_labels = [*data.spec.memory_labels, *data.new_labels]
            targets = label_numbers(split.neighbors.memories, memory_labels)
            # The last entry is what row -1 (no memory) reads.
            self.memory_targets = np.append(np.where(targets == UNKNOWN, NO_TARGET, targets), NO_TARGET)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Words of each text [n], as kept."""
        return self.reader.lengths

    def __len__(self) -> int:
        return len(self.split.rows)

    def __getitems__(self, indices: Sequence[int]) -> ClassificationBatch:
        """Put a batch together; an index ~i (negative) is row i as padding, with weight 0."""
        fields, memories = self.reader.read(indices)
        return ClassificationBatch(
            **fields,
            memory_target=torch.from_numpy(self.memory_targets[memories]),
            target=torch.from_numpy(self.targets[fields["row"].numpy()]),
        )


def label_numbers(rows: Rows, labels: Sequence[str]) -> NDArray[np.int64]:
    """The position of each row's label in `labels` [n]: -1 = not there, -100 = the row has none."""
    column = rows.table.column("label")
    found = pc.fill_null(pc.index_in(column, value_set=pa.array(labels, pa.string())), UNKNOWN)
    numbers: NDArray[np.int64] = found.to_numpy().astype(np.int64)
    numbers[pc.is_null(column).to_numpy()] = NO_TARGET
    return numbers
