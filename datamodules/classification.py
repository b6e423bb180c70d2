"""Labelled texts with their memories: tables, labels, the facts that a classifier needs, and batches."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.batch import BatchContents, ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError, excerpt
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import limit_classes
from datamodules.corpora.table import read_class_names
from datamodules.dataset import rows_and_weights
from datamodules.memory_source import DEFAULT_RETRIEVER
from datamodules.options import TextOptions
from datamodules.retrieval import Memory, Retriever, is_memory
from datamodules.state import DataState
from datamodules.text.vocabulary import Vocabulary
from datamodules.text_rows import TextDataset, TextRowsDataModule, TextSplit

#: A table with more labels must have two rows for each, or else they are taken for ids or texts.
MANY_LABELS = 5_000
#: Class of an unknown label, before it is replaced by the number of classes.
UNKNOWN = -1
NO_TARGET = -100


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions(TextOptions):
    """Options of `ClassificationDataModule`; splits are stratified.

    Attributes:
        class_names: names of the labels 1, 2, ...: a list, or a file with one per line; or `{0: World, 1: Sports}`.
        rows_per_class: number or share of training rows kept per class, or `{World: 2000}`; chosen by `split_seed`.
        memory_label_column: label of the memory table; None = its texts have no labels.
        label_texts: table of texts that describe labels, next to the words of their names; columns text and label.
        unlabelled_file: table of further texts, without labels, from which `MemoryEnsemble` learns with a transformer.
    """

    class_names: str | list[str] | dict[str, str] | None = None
    rows_per_class: int | float | dict[str, int] | None = None
    memory_label_column: Column | None = None
    label_texts: str | None = None
    unlabelled_file: str | None = None
    characters: bool = True

    files: ClassVar[tuple[str, ...]] = (*TextOptions.files, "class_names", "label_texts", "unlabelled_file")
    unprepared: ClassVar[tuple[str, ...]] = (*TextOptions.unprepared, "label_texts", "unlabelled_file")
    name_lists: ClassVar[tuple[str, ...]] = ("class_names",)
    eval_batches: ClassVar[int] = 4

    @override
    def idle_options(self) -> Iterator[tuple[str, str]]:
        yield from super().idle_options()
        if self.memory_label_column is not None and self.memory is None:
            yield (
                "memory_label_column",
                "data.memory names no table; memories have the labels of the training table",
            )


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


class ClassificationDataModule(TextRowsDataModule[ClassificationOptions]):
    """Texts to classify, each with its retrieved memories.

    Args:
        retriever: back end and ranking: EmbeddedRetriever, ElasticsearchRetriever, DenseRetriever, ...

    Example:
        >>> data = ClassificationDataModule(train_file="train.csv", text_column="text", num_memories=5)
    """

    options_type = ClassificationOptions
    spec_type = ClassificationSpec
    dataset_type = ClassificationDataset
    monitor = "val/accuracy"

    def __init__(self, retriever: Retriever = DEFAULT_RETRIEVER, **options: Any) -> None:
        super().__init__(ClassificationOptions(**options), retriever)

    @override
    def table_columns(self) -> PlainDict:
        return {**super().table_columns(), "class_names": self.options.class_names}

    @override
    def strata(self, table: Rows) -> Sequence[str]:
        return table.labels or []

    @override
    def read_tables(self, wanted: Sequence[str]) -> dict[str, Rows]:
        tables, options = super().read_tables(wanted), self.options
        if (train := tables.get("train")) is None:
            return tables
        if options.rows_per_class is not None:
            train = limit_classes(train, options.rows_per_class, options.split_seed)
        if len(labels := train.distinct_labels()) < 2:
            have = f"the label {excerpt(labels[0])!r}" if labels else "no label (data.label_column)"
            raise InputError(f"{train.source}: all rows have {have}; a classifier needs two classes")
        if len(labels) > max(MANY_LABELS, len(train) // 2):
            raise InputError(
                f"{train.source}: {len(labels):,} labels of {len(train):,} rows; is this the column of the labels"
                " (data.label_column)?"
            )
        return {**tables, "train": train}

    @override
    def memory_columns(self) -> PlainDict:
        options = self.options
        if options.memory is None or is_memory(options.memory):
            return {name: value for name, value in self.table_columns().items() if name != "id_column"}
        text_column = options.memory_text_column
        columns = {
            "text_column": options.text_column if text_column is None else text_column,
            "label_column": options.memory_label_column,
        }
        # The training table is read in one way, so that equal ids are the same row.
        own = {"id_column": options.id_column, "quotes": options.quotes}
        return {**columns, **own} if self.is_memory_table(options.train_file) else columns

    @override
    def portable_state(self) -> DataState:
        state, names = super().portable_state(), self.options.class_names
        if isinstance(names, str):
            names = read_class_names(names)
        named = {"class_names": names}
        columns = {**state.memory_columns, **(named if "class_names" in state.memory_columns else {})}
        return replace(state, options={**state.options, **named}, memory_columns=columns)

    @override
    def learn(self, train: TextSplit, vocabulary: Vocabulary, memory: Memory | None) -> PlainDict:
        return {
            "labels": in_natural_order(train.rows.distinct_labels()),
            "memory_labels": [] if memory is None else memory.labels(),
            "num_memories": self.options.num_memories,
        }

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: PlainDict) -> ClassificationSpec:
        labels, memory_labels = list(facts["labels"]), list(facts["memory_labels"])
        # Memories of the same task are numbered as its classes; another task's labels are a list of their own.
        is_same_task = set(memory_labels) <= set(labels)
        return ClassificationSpec(
            num_words=len(vocabulary),
            num_chars=len(vocabulary.characters or ()),
            labels=labels,
            memory_labels=labels if memory_labels and is_same_task else memory_labels,
            num_memories=facts["num_memories"],
        )


#: Python converts at most 4,300 digits to a number.
_NUMBER = re.compile(r"-?\d{1,4000}")


def in_natural_order(labels: Sequence[str]) -> list[str]:
    """Sort labels: as numbers if all are numbers, otherwise as strings."""
    if all(_NUMBER.fullmatch(label) for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
