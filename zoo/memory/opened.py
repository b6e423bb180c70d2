"""The memory that a command works on: of a model, or a folder of `zoo index`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from datamodules.core.errors import InputError, excerpt
from datamodules.corpora.multilabel import distinct_labels, join_labels, split_labels
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory, Memory, open_memory
from datamodules.retrieval.memories.changes import name_row
from datamodules.retrieval.memories.memory import Addition, Change
from zoo.model_folder.folder import ModelFolder, is_model

DoneT = TypeVar("DoneT", Addition, Change)
Edit: TypeAlias = "Callable[[OpenedMemory], DoneT]"


class OpenedMemory(NamedTuple):
    """A memory with the model that reads it, whose weights are not read.

    Commands on memories open one, by the name of a model or of a memory folder, and change or show it.
    """

    memory: Memory
    #: None for a memory folder.
    model: ModelFolder | None

    @classmethod
    def open(cls, name: str) -> OpenedMemory:
        """Open the memory of a model, or a memory folder, in the current version."""
        if not is_model(name):
            return cls(open_memory(name), None)
        model = ModelFolder.open(name)
        return cls(model.open_memory(), model)

    @classmethod
    def open_to_change(cls, name: str, fits_for: str | None = None) -> OpenedMemory:
        """Open a memory that can be changed; `fits_for` is the option that fits the model's weights afterwards."""
        opened = cls.open(name)
        if fits_for is not None:
            opened.model_with_weights(fits_for)
        if opened.model is not None:
            opened.model.check_changeable()
        return opened

    @property
    def separator(self) -> str | None:
        """The string between the labels of a row, which are a set; None: a row has one label."""
        return None if self.model is None else self.model.meta.spec.get("label_separator")

    def labels(self) -> list[str]:
        """The distinct labels of the rows, sorted."""
        return distinct_labels(self.memory.labels(), self.separator)

    @property
    def folder(self) -> FolderMemory:
        """The memory, which is in a folder; an `InputError` for an index of the user's."""
        if not isinstance(self.memory, FolderMemory):
            place = self.memory.location()
            raise InputError(f"{place}: this index is only read; change documents with your own tools")
        return self.memory

    def read(self, file: str, id_column: Column | None, **given: TextColumn | None) -> Rows:
        """Read a table of rows for the memory; columns that are None are those of its first rows."""
        columns = {} if self.model is None else dict(self.model.meta.data.memory_columns)
        columns |= {name: value for name, value in given.items() if value is not None}
        if not self.memory.labels():
            columns["label_column"] = given["label_column"]
        return self.read_labels(file, **{**columns, "id_column": id_column})

    def read_labels(self, file: str, **columns: Any) -> Rows:
        """Read a table by arguments of `read_table`; its labels are names, or numbers as in the training table."""
        columns.pop("class_names", None)
        columns["label_separator"] = self.separator
        rows = read_table(file, **columns)
        unknown = set(distinct_labels(rows.labels or (), self.separator)) - set(self.labels())
        names = None if self.model is None else self.model.meta.data.memory_columns.get("class_names")
        return rows if names is None or not unknown else read_table(file, **columns, class_names=names)

    def add(
        self, rows: Rows, new_labels: bool, keep_ids: bool, relabel: bool = False, note: str | None = None
    ) -> Addition:
        """Add rows as `FolderMemory.add` does, with labels of the memory, or also others with `new_labels`."""
        if self.separator is not None and self.memory.labels():  # of a request, whose labels have any order
            written = rows.table.column("label").to_pylist()
            labels = [join_labels((label or "").split(self.separator), self.separator) for label in written]
            rows = Rows.from_lists(rows.texts, labels, rows.ids, rows.source)
        self.check_known(rows.labels or (), partial(name_row, rows), new_labels)
        return self.folder.add(rows, keep_ids, note, relabel)

    def relabel(self, changes: dict[str, str], new_labels: bool = False, note: str | None = None) -> Change:
        """Give rows of the memory other labels, id -> label."""
        if (separator := self.separator) is not None:
            changes = {name: join_labels(new.split(separator), separator) for name, new in changes.items()}
        place, ids = self.memory.location(), [*changes]
        self.check_known(changes.values(), lambda row: f"{place}: row {excerpt(ids[row])}", new_labels)
        return self.folder.replace(changes, note)

    def replace(self, rows: Rows, note: str | None = None) -> Change:
        """Put rows in the place of those with the same ids."""
        self.check_known(rows.labels or (), partial(name_row, rows))
        return self.folder.replace(rows, note)

    def check_known(
        self, wanted: Collection[str], name: Callable[[int], str], new_labels: bool = False
    ) -> None:
        """Refuse labels of rows, which `name` names by their positions, that the model cannot predict."""
        if new_labels and self.model is None:
            place = self.memory.location()
            raise InputError(f"--new_labels: {place}: a memory folder takes any label; omit it")
        if new_labels and self.model is not None and not self.model.meta.takes_new_labels:
            raise InputError(
                f"--new_labels: a {self.model.meta.model} cannot predict labels that it was not trained with; train it"
                " again with their rows, or use a MemoryEnsemble"
            )
        labels, separator = self.memory.labels(), self.separator
        if self.model is None or new_labels or not labels:
            return
        known = distinct_labels([*self.model.meta.spec.get("memory_labels", ()), *labels], separator)
        if unknown := set(distinct_labels(wanted, separator)).difference(known):
            split = [unknown.intersection(split_labels(each, separator)) for each in wanted]
            row = next(row for row, own in enumerate(split) if own)
            problem = f"has the label {min(split[row])!r}, which the model cannot predict; correct it"
            advice = "or add rows that a MemoryEnsemble predicts by its memory with --new_labels true"
            raise InputError(f"{name(row)} {problem}, {advice}")

    def named_model(self, option: str) -> ModelFolder:
        """Return the model, or raise an `InputError` for a memory folder."""
        if self.model is None:
            place = self.memory.location()
            raise InputError(f"{option}: {place} has no weights; name the model of the memory")
        return self.model

    def model_with_weights(self, option: str) -> ModelFolder:
        """Return the model, or raise an `InputError` if it has no weights that can be fitted without training."""
        model = self.named_model(option)
        if not model.meta.fits_weights:
            raise InputError(
                f"{model.source}: a {model.meta.model} has no weights to fit without training; train a MemoryEnsemble"
            )
        return model
