"""`zoo memory remove`, `relabel`, `replace` and `compact`: rows of a memory that are taken out or corrected."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow.compute as pc

from datamodules.core.errors import InputError, visible
from datamodules.corpora.readers import open_lines
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory, Retriever
from datamodules.retrieval.memories.memory import Change
from zoo.memory.opened import OpenedMemory


def remove(
    model: str,
    ids: str | None = None,
    file: str | None = None,
    where: str | None = None,
    id_column: Column = "id",
    allow_empty_class: bool = False,
    refit: bool = False,
    push: str | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Remove rows from a model's memory. Its predictions do without them at once, as if they had never been there.

    The old version stays: see `memory_version` of `zoo predict`, and `zoo memory compact`, which deletes it for good.
    What the model itself has learned from the rows is printed, with the command that ends it.

    Args:
        model: a run folder or a model folder; or a memory folder.
        ids: the rows' ids, such as '[12,2:0]'.
        file: in place of ids, a table that has them in a column, or a .txt file with one in each line.
        where: in place of ids, label=NAME for all rows of a class.
        id_column: name or number of the column of ids in `file`.
        allow_empty_class: whether the last row of a class may be removed.
        refit: also fit the members that need no gradients again, and the weights, without the rows.
        push: upload the changed model, too; see `zoo memory add`.
        retriever: back end to use instead of the model's (another server).
    """
    opened = OpenedMemory.open_to_change(model, retriever, refit, push)
    memory = opened.folder
    given = [name for name, value in (("ids", ids), ("file", file), ("where", where)) if value is not None]
    if len(given) != 1:
        raise InputError(
            f"zoo memory remove: give one of --ids, --file and --where, not {len(given)} of them"
        )
    if ids is not None:
        wanted = parse_ids(ids)
    elif file is not None:
        wanted = _ids_in(file, id_column)
    else:
        wanted = _ids_where(memory, str(where))
    if refit:  # a command that was killed after its first step is repeated
        gone = memory.removed_ids()
        wanted = [each for each in wanted if each not in gone]
    _report(opened, memory.remove(wanted, allow_empty_class), "removed", refit, retriever)
    opened.share(push)


def relabel(
    model: str,
    ids: str | None = None,
    label: str | None = None,
    file: str | None = None,
    id_column: Column = "id",
    label_column: Column = "label",
    allow_empty_class: bool = False,
    refit: bool = False,
    push: str | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Give other labels to rows of a model's memory.

    Args:
        model: a run folder or a model folder; or a memory folder.
        ids: the rows' ids, such as '[12,2:0]', which all get `label`.
        label: the label of `ids`.
        file: in place of both, a table with ids and labels.
        id_column: name or number of the column of ids in `file`.
        label_column: name or number of the column of labels in `file`.
        allow_empty_class: whether the last row of a class may get another label.
        refit: see `zoo memory remove`.
        push: see `zoo memory add`.
        retriever: back end to use instead of the model's (another server).
    """
    opened = OpenedMemory.open_to_change(model, retriever, refit, push)
    if (file is None) == (ids is None) or (ids is None) != (label is None):
        raise InputError("zoo memory relabel: give --ids and --label, or --file")
    if file is not None:
        rows = read_table(file, id_column, label_column, class_names=opened.columns.get("class_names"))
        wanted, labels = list(rows.texts), rows.labels or []
    else:
        wanted = parse_ids(str(ids))
        labels = [str(label)] * len(wanted)
    relabel_rows(opened, wanted, labels, allow_empty_class, refit, retriever)
    opened.share(push)


def relabel_rows(
    opened: OpenedMemory,
    ids: Sequence[str],
    labels: Sequence[str],
    allow_empty_class: bool = False,
    refit: bool = False,
    retriever: Retriever | None = None,
) -> None:
    """Give labels to the rows with these ids, and report it."""
    opened.folder.opened.rows_with_ids(ids)  # refuses an id that is given twice
    change = dict(zip(ids, labels, strict=True))
    done = opened.folder.relabel(change, opened.addable_labels(), allow_empty_class)
    _report(opened, done, "relabelled", refit, retriever)


def replace(
    model: str,
    file: str,
    id_column: Column = "id",
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    allow_empty_class: bool = False,
    refit: bool = False,
    push: str | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Put the rows of a table in the place of those with the same ids in a model's memory.

    Args:
        model: a run folder or a model folder; or a memory folder.
        file: table of texts with ids, labelled if the memory is.
        id_column: name or number of the column of ids.
        text_column: name or number of the text, or several; null: as for the first rows of the memory.
        label_column: name or number of the label; null: as for the first rows.
        allow_empty_class: whether the last row of a class may get another label.
        refit: see `zoo memory remove`.
        push: see `zoo memory add`.
        retriever: back end to use instead of the model's (another server).
    """
    opened = OpenedMemory.open_to_change(model, retriever, refit, push)
    columns = opened.columns
    given = {"text_column": text_column, "label_column": label_column, "id_column": id_column}
    columns |= {name: value for name, value in given.items() if value is not None}
    if not opened.memory.labels():
        columns["label_column"] = label_column
    done = opened.folder.replace(read_table(file, **columns), opened.addable_labels(), allow_empty_class)
    _report(opened, done, "replaced", refit, retriever)
    opened.share(push)


def compact(model: str, keep: int = 1, retriever: Retriever | None = None) -> None:
    """Delete the old versions of a model's memory for good, with the texts that only they have.

    Args:
        model: a run folder or a model folder; or a memory folder.
        keep: number of versions to keep, the current one included.
        retriever: back end to use instead of the model's (another server).
    """
    opened = OpenedMemory.open_to_change(model, retriever)
    memory, folder = opened.folder, opened.model
    deleted = memory.compact(keep)
    first = memory.versions()[0][0]
    kept = "version" if first == memory.version else f"versions {first} to"
    print(f"{memory.location()}: {deleted} versions deleted, {kept} {memory.version} kept")
    if deleted and memory.retriever.is_on_server:
        print(
            "the server keeps the index of the first version, which other memories may share; delete it there"
        )
    if folder is None:
        return
    state = folder.state
    fitted_at = max((version for version in state.fitted if version <= first), default=0)
    folder.switch(state.since(first))
    folder.delete_unused_values()
    if state.fitted_to(first).members is not None and fitted_at < first:
        print(
            f"the members were fitted to version {fitted_at}, and know its rows; to fit them to those of the"
            f" memory: zoo memory tune {model} LABELLED.csv --refit true"
        )
    print(
        "the training table and its copies in the cache of data are as they were; delete them if no text may remain"
        " there"
    )


def parse_ids(text: str) -> list[str]:
    """Return the ids in '[a,b]', 'a,b' or a JSON list of strings; raise an `InputError` if there are none."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if isinstance(values, list) and all(isinstance(each, str) for each in values):
        ids = values
    else:  # not as JSON or YAML, where 007 is the number 7
        ids = [each.strip() for each in text.strip().removeprefix("[").removesuffix("]").split(",")]
    if not all(ids) or not ids:
        raise InputError(f"--ids {visible(text)}: names no id; give a list, such as '[12,2:0]'")
    return ids


def _ids_in(file: str, id_column: Column) -> list[str]:
    if file.endswith(".txt"):
        return [name for line in open_lines(file) if (name := line.rstrip("\r\n"))]
    return list(read_table(file, id_column, None).texts)


def _ids_where(memory: FolderMemory, condition: str) -> list[str]:
    """The ids of the rows for which `label=NAME` is true."""
    column, equals, name = condition.partition("=")
    if column.strip() != "label" or not equals:
        raise InputError(f"--where {visible(condition)}: only label=NAME is known")
    if name not in memory.labels():
        raise InputError(
            f"--where {visible(condition)}: no row has this label; there are {visible(', '.join(memory.labels()))}"
        )
    ids: list[str] = memory.rows.table.filter(pc.field("label") == name).column("id").to_pylist()
    return ids


def _report(opened: OpenedMemory, done: Change, what: str, refit: bool, retriever: Retriever | None) -> None:
    """Print what a change has done, and end it: fit again what can be, or name what still knows the old rows."""
    print(f"{opened.memory.location()}: version {done.version}, {done.rows} memories, {done.changed} {what}")
    if opened.model is not None and (done.changed or refit):
        from zoo.memory.tuning import name_what_stays

        name_what_stays(opened.model, refit, retriever)
