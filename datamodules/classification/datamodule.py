"""Labelled texts with their memories: what is their own beside the skeleton of `datamodules.base`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader
from typing_extensions import override

from datamodules.base import TextDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification.dataset import ClassificationDataset
from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.records import Column
from datamodules.corpora.rows import Rows
from datamodules.corpora.split import limit_classes, select_classes
from datamodules.corpora.table import read_table
from datamodules.retrieval import Memory, is_memory
from datamodules.text.vocabulary import Vocabulary
from datamodules.text_rows import TextRowsDataModule, TextSplit

log = logging.getLogger(__name__)


class ClassificationDataModule(TextRowsDataModule):
    """Texts to classify, each with the memories that a retriever found for it.

    Example:
        >>> data = ClassificationDataModule(train_file="train.csv", text_column="text", num_memories=5)
    """

    spec_type = ClassificationSpec
    monitor = "val/accuracy"
    files = (*TextDataModule.files, "class_names")
    no_file_lists = ("class_names",)
    split_options = (*TextDataModule.split_options, "test_split")
    fact_names = ("labels", "memory_labels", "num_memories")
    eval_batches = 4

    def __init__(
        self,
        *,
        text_column: Column | list[Column] = "text",
        label_column: Column = "label",
        id_column: Column | None = None,
        header: bool | None = None,
        quotes: bool | None = None,
        class_names: str | list[str] | dict[str, str] | None = None,
        classes: list[str] | None = None,
        rows_per_class: int | float | dict[str, int] | None = None,
        test_split: int | float | None = None,
        memory_label_column: Column | None = None,
        characters: bool = True,
        **shared: Any,
    ) -> None:
        """Describe the data; nothing is read yet.

        A table is a .csv, .tsv, .jsonl (also .gz, .xz) or .parquet file, a folder saved by `datasets`, or
        `hub:NAME[:SPLIT]`. `validation_split` is stratified: a share (0.1) or rows a class (500).

        Args:
            text_column: name or number (from 0) of the text, or several, which are joined.
            label_column: name or number of the label.
            id_column: name or number of an id; row numbers otherwise.
            header: whether CSV files have a header line; None finds out.
            quotes: whether fields may stand in double quotes; None = in CSV files, not in TSV files.
            class_names: names for labels that are numbers from 1: a list, or a file with one a line; or a name
                for each label (`{0: World, 1: Sports}`).
            classes: keep these classes only.
            rows_per_class: keep so many training rows a class, or this share, or so many of each class named
                (`{World: 2000, Sports: 4000}`); chosen by `split_seed`.
            test_split: what is split off the training table for the test, before the validation rows: a share or rows
                a class. None = nothing.
            memory_label_column: label of the memory table; None = its texts have no labels.
            characters: give the model the characters of words.
            **shared: options of `TextRowsDataModule` and `TextDataModule`: lengths, tables, memory, words, batches.
        """
        super().__init__(characters=characters, **shared)
        self._new_labels: list[str] = []
        if test_split is not None and self.options.test_file is not None:
            raise InputError("data.test_split: the data brings its own test; leave the option out")

    # --- tables ---

    @property
    @override
    def has_test_table(self) -> bool:
        return super().has_test_table or self.options.test_split is not None

    @override
    def is_split_off(self, name: str) -> bool:
        return super().is_split_off(name) or (name == "test" and self.options.test_split is not None)

    @override
    def read_tables(self, wanted: Sequence[str]) -> dict[str, Rows]:
        tables = self._training_tables() if "train" in wanted else {}
        if "validation" in wanted and not tables:
            tables["validation"] = self._read(self.options.validation_file)
        if "test" in wanted:
            tables["test"] = self._test_table()
        return tables

    def _read(self, path: str) -> Rows:
        options = self.options
        return read_table(
            path,
            text_column=options.text_column,
            label_column=options.label_column,
            id_column=options.id_column,
            header=options.header,
            quotes=options.quotes,
            class_names=options.class_names,
        )

    def _labelled_table(self) -> Rows:
        """The table to train on, before anything is split off."""
        options = self.options
        if options.train_file is None:
            raise InputError("data.train_file: name a table of labelled texts")
        table = self._read(options.train_file)
        return select_classes(table, options.classes) if options.classes else table

    def _without_test(self) -> tuple[Rows, Rows]:
        """The labelled table in two parts, of which the second is the test."""
        table = self._labelled_table()
        train, test = self.split_off(table.labels or [], table, self.options.test_split)
        return table.select(train), table.select(test)

    def _training_tables(self) -> dict[str, Rows]:
        options = self.options
        table = self._labelled_table() if options.test_split is None else self._without_test()[0]
        if options.validation_file is not None:
            train, validation = table, self._read(options.validation_file)
            if options.classes:
                validation = select_classes(validation, options.classes)
        else:
            train_rows, validation_rows = self.split_off(table.labels or [], table)
            train, validation = table.select(train_rows), table.select(validation_rows)
        if options.rows_per_class is not None:
            train = limit_classes(train, options.rows_per_class, options.split_seed)
        if len(labels := train.distinct_labels()) < 2:
            have = f"the label {excerpt(labels[0])!r}" if labels else "no label (data.label_column)"
            raise InputError(f"{table.source}: all rows have {have}; a classifier needs two classes")
        return {"train": train, "validation": validation}

    def _test_table(self) -> Rows:
        if self.options.test_file is not None:
            return self._read(self.options.test_file)
        if self.options.test_split is not None:
            return self._without_test()[1]
        raise InputError(
            "data.test_file: name a table of labelled texts, or say what to split off with data.test_split"
        )

    # --- memory ---

    @override
    def memory_columns(self) -> dict[str, Any]:
        options = self.options
        if options.memory is not None and not is_memory(options.memory):
            text_column = options.memory_text_column
            return {
                "text_column": options.text_column if text_column is None else text_column,
                "label_column": options.memory_label_column,
                # One table is read in one way, and equal ids are the same row.
                **(
                    {"id_column": options.id_column, "quotes": options.quotes}
                    if self.is_memory_table(options.train_file)
                    else {}
                ),
            }
        names = ("text_column", "label_column", "header", "quotes", "class_names")
        return {name: options[name] for name in names}

    @property
    @override
    def memory_labels(self) -> list[str] | None:
        labels: list[str] = self.spec.memory_labels
        return labels or None

    @override
    def check_memory(self, memory: Memory) -> None:
        labels, known = memory.labels(), [*self.spec.memory_labels, *self.new_labels]
        strange = [label for label in labels if label not in known]
        if strange or bool(labels) != bool(known):
            why = f"has the label {strange[0]!r}, which it does not know" if strange else "has no labels"
            raise InputError(
                f"{memory.location()}: belongs to another model: it {why}; name this model's memory, or leave"
                " --memory out"
            )

    # --- what a checkpoint needs ---

    @override
    def learn(self, train: TextSplit, vocabulary: Vocabulary) -> dict[str, Any]:
        return {
            "labels": in_natural_order(train.rows.distinct_labels()),
            "memory_labels": self.opened_memory.labels() if self.num_memories else [],
            "num_memories": self.num_memories,
        }

    @property
    @override
    def new_labels(self) -> list[str]:
        return self._new_labels

    @override
    def make_spec(self, vocabulary: Vocabulary, facts: Mapping[str, Any]) -> ClassificationSpec:
        labels, memory_labels = list(facts["labels"]), list(facts["memory_labels"])
        # Memories of the same task are numbered as its classes; another task's labels are their own list.
        same_task = set(memory_labels) <= set(labels)
        return ClassificationSpec(
            num_words=len(vocabulary),
            num_chars=len(vocabulary.characters or ()),
            labels=labels,
            memory_labels=labels if memory_labels and same_task else memory_labels,
            num_memories=facts["num_memories"],
        )

    @override
    def state(self) -> dict[str, Any]:
        return {**super().state(), "new_labels": self.new_labels}

    @override
    def use_state(self, state: Mapping[str, Any]) -> None:
        self._new_labels = list(state.get("new_labels", ()))  # of old checkpoints there are none
        super().use_state(state)
        self.options.num_memories = state["num_memories"]

    # --- batches ---

    @override
    def dataset(self, split: TextSplit) -> ClassificationDataset:
        return ClassificationDataset(self, split)

    @override
    def _loader(self, dataset: ClassificationDataset, training: bool) -> DataLoader[ClassificationBatch]:
        if dataset.unknown_labels:
            log.warning(
                "%s: %d of %d rows have a label that training lacks; they count as errors",
                dataset.split.rows.source,
                dataset.unknown_labels,
                len(dataset),
            )
        return super()._loader(dataset, training)


#: Python makes no number of more digits than 4,300.
_NUMBER = re.compile(r"-?\d{1,4000}")


def in_natural_order(labels: Sequence[str]) -> list[str]:
    """Labels sorted; as numbers, if all are."""
    if all(_NUMBER.fullmatch(label) for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
