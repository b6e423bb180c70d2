"""Labelled texts with their memories: tables, labels, the facts that a classifier needs, and batches."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from typing_extensions import override

from datamodules.batch import BatchContents, ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError, excerpt
from datamodules.core.files import existing_file
from datamodules.core.types import Message, PlainDict
from datamodules.corpora.multilabel import distinct_labels, rarest_labels, split_labels
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
#: Options of data with labelled rows.
_NEED_ROWS = ("validation_file", "test_split", "label_separator", "label_columns")
#: Class of an unknown label, before it is replaced by the number of classes.
UNKNOWN = -1
NO_TARGET = -100


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions(TextOptions):
    """Options of `ClassificationDataModule`; splits are stratified.

    Attributes:
        class_names: names of the labels 1, 2, ...: a list, or a file with one per line; or `{0: World, 1: Sports}`.
        rows_per_class: number or share of training rows kept per class, or `{World: 2000}`; chosen by `split_seed`.
        label_separator: stands between the labels of a text, which are a set, perhaps an empty one (see `read_table`);
            only `MemoryEnsemble` learns them. None = a text has one label.
        label_columns: in place of `label_column`, columns of 0 and 1 whose names are the labels of such a set.
        memory_label_column: label of the memory table; None = its texts have no labels.
        label_texts: table of texts that describe labels, next to the words of their names; columns as in `train_file`.
            Without a `train_file`, they are the labels of a `MemoryEnsemble` that has no labelled rows.
        unlabelled_file: table of further texts, without labels, from which `MemoryEnsemble` learns with a transformer.
    """

    class_names: str | list[str] | dict[str, str] | None = None
    rows_per_class: int | float | dict[str, int] | None = None
    label_separator: str | None = None
    label_columns: list[str] | None = None
    memory_label_column: Column | None = None
    label_texts: str | None = None
    unlabelled_file: str | None = None
    characters: bool = True

    files: ClassVar[tuple[str, ...]] = (*TextOptions.files, "class_names", "label_texts", "unlabelled_file")
    unprepared: ClassVar[tuple[str, ...]] = (*TextOptions.unprepared, "label_texts", "unlabelled_file")
    name_lists: ClassVar[tuple[str, ...]] = ("class_names",)
    eval_batches: ClassVar[int] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_separator == "":
            advice = "name the characters between two labels, such as ';'"
            raise InputError(f"data.label_separator: is empty; {advice}")
        columns = self.label_columns
        if columns is not None and self.label_column != "label":
            raise InputError("data.label_column and data.label_columns: give one of them")
        if columns is not None and len(set(columns)) < max(2, len(columns)):
            raise InputError("data.label_columns: name two columns or more, each a label, once")
        if self.label_separator is not None and self.rows_per_class is not None:
            raise InputError("data.rows_per_class: a row of several labels is of no one class; omit it")
        if self.is_described and any(getattr(self, name) for name in _NEED_ROWS):
            raise InputError(f"data.train_file: name a table, which {', '.join(_NEED_ROWS)} need")

    @property
    def is_described(self) -> bool:
        """True where no row has a label: the texts of the labels stand for the training table."""
        return self.train_file is None and self.label_texts is not None

    @property
    @override
    def tables(self) -> dict[str, str | list[str] | None]:
        return super().tables | ({"train": self.label_texts} if self.is_described else {})

    @property
    @override
    def split_shares(self) -> dict[str, int | float]:
        return {"validation": 0} if self.is_described else super().split_shares


class ClassificationDataset(TextDataset[ClassificationBatch]):
    """Batches of labelled texts with their memories."""

    def __init__(self, data: TextRowsDataModule[Any], split: TextSplit, contents: BatchContents) -> None:
        super().__init__(data, split, contents)
        labels, separator = [*data.spec.labels, *contents.new_labels], data.spec.label_separator
        numbers = label_numbers(split.rows, labels, separator)
        is_unknown = numbers == UNKNOWN
        self.unknown_of_row: NDArray[np.int64] | None = None
        if separator is None:
            self.targets = np.where(is_unknown, len(labels), numbers)
        else:
            self.targets, self.unknown_of_row = as_indicators(numbers, len(labels)), is_unknown.sum(axis=1)
            is_unknown = is_unknown.any(axis=1)
        self.unknown_labels = int(is_unknown.sum())
        self.memory_targets = np.array([NO_TARGET])
        if split.neighbors is not None:
            memory_labels = [*data.spec.memory_labels, *contents.new_labels]
            numbers = label_numbers(split.neighbors.memories, memory_labels, separator)
            # The last entry is the target of row -1 (no memory).
            none = np.full((1, *numbers.shape[1:]), NO_TARGET)
            self.memory_targets = np.concatenate([np.where(numbers == UNKNOWN, NO_TARGET, numbers), none])

    @override
    def messages(self) -> Iterator[Message]:
        if self.unknown_labels:
            problem = f"{self.unknown_labels} of {len(self)} rows have a label that training lacks"
            yield logging.WARNING, f"{self.split.rows.source}: {problem}; they count as errors"

    @override
    def __getitems__(self, indices: Sequence[int] | NDArray[np.int64]) -> ClassificationBatch:
        row, _ = rows_and_weights(indices)
        (fields, memories), unknown = self.read(indices), self.unknown_of_row
        return ClassificationBatch(
            **fields,  # type: ignore[arg-type]
            memory_target=torch.from_numpy(self.memory_targets[memories]),
            target=torch.from_numpy(self.targets[row]),
            unknown_labels=None if unknown is None else torch.from_numpy(unknown[row]),
        )


def label_numbers(rows: Rows, labels: Sequence[str], separator: str | None = None) -> NDArray[np.int64]:
    """The position of each row's label in `labels` [n]: -1 = unknown, -100 = the row has no label.

    With a separator, [n, L]: those of its labels, L at most, then -100.
    """
    encoded = rows.table.column("label").combine_chunks().dictionary_encode()
    position = {label: number for number, label in enumerate(labels)}
    written = (split_labels(each, separator) for each in encoded.dictionary.to_pylist())
    sets = [[position.get(label, UNKNOWN) for label in labels_of_set] for labels_of_set in written]
    # The last set is that of rows without labels.
    numbers = np.full((len(sets) + 1, max(map(len, sets), default=int(separator is None))), NO_TARGET)
    for row, numbers_of_set in enumerate(sets):
        numbers[row, : len(numbers_of_set)] = numbers_of_set
    numbers = numbers[pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)]
    return numbers[:, 0] if separator is None else numbers


def as_indicators(numbers: NDArray[np.int64], num_labels: int) -> NDArray[np.int64]:
    """Sets of labels [n, C] of 0 and 1 from their numbers [n, L], of which those below 0 are none."""
    indicators = np.zeros((len(numbers), num_labels), np.int64)
    rows, places = np.nonzero(numbers >= 0)
    indicators[rows, numbers[rows, places]] = 1
    return indicators


def targets_of(rows: Rows, spec: ClassificationSpec, new_labels: Sequence[str] = ()) -> NDArray[np.int64]:
    """The classes of rows [n], as in `label_numbers`; of a spec with sets of labels, [n, C] of 0 and 1."""
    labels = [*spec.labels, *new_labels]
    numbers = label_numbers(rows, labels, spec.label_separator)
    return numbers if spec.label_separator is None else as_indicators(numbers, len(labels))


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
        if self.options.label_separator is not None:
            self.monitor = "val/mean_average_precision"  # until the last epoch, no rule chooses a set

    @override
    def table_columns(self) -> PlainDict:
        columns, options = super().table_columns(), self.options
        columns |= {"class_names": options.class_names, "label_separator": options.label_separator}
        columns["label_column"] = options.label_columns or columns["label_column"]
        return columns

    @override
    def strata(self, table: Rows) -> Sequence[str]:
        labels, separator = table.labels or [], self.options.label_separator
        return labels if separator is None else rarest_labels(labels, separator)

    @override
    def read_tables(self, wanted: Sequence[str]) -> dict[str, Rows]:
        tables, options = super().read_tables(wanted), self.options
        if (train := tables.get("train")) is None:
            return tables
        if options.rows_per_class is not None:
            train = limit_classes(train, options.rows_per_class, options.split_seed)
        for name in sorted({*options.files} & {*options.unprepared}):  # which are read later, or by no member
            if (file := getattr(options, name)) is not None and self.file_contents[name] is None:
                existing_file(file)
        labels = distinct_labels(written := train.distinct_labels(), options.label_separator)
        if max(len(labels), len(written)) < 2:  # one label or none is a set, too
            have = f"the label {excerpt(labels[0])!r}" if labels else "no label (data.label_column)"
            raise InputError(f"{train.source}: all rows have {have}; a classifier needs two classes")
        if len(labels) > max(MANY_LABELS, len(train) // 2):
            problem = f"{len(labels):,} labels of {len(train):,} rows"
            advice = "is this the column of the labels (data.label_column)?"
            raise InputError(f"{train.source}: {problem}; {advice}")
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
            "label_separator": options.label_separator,
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
        separator = self.options.label_separator
        return {
            "labels": in_natural_order(distinct_labels(train.rows.distinct_labels(), separator)),
            "memory_labels": [] if memory is None else distinct_labels(memory.labels(), separator),
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
            label_separator=self.options.label_separator,
        )


#: Python converts at most 4,300 digits to a number.
_NUMBER = re.compile(r"-?\d{1,4000}")


def in_natural_order(labels: Sequence[str]) -> list[str]:
    """Sort labels: as numbers if all are numbers, otherwise as strings."""
    if all(_NUMBER.fullmatch(label) for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
