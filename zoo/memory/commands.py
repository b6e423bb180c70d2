"""`zoo memory add` and `show`: the contents of a memory, and its growth while the model stays as it is."""

from __future__ import annotations

from datamodules.core.errors import excerpt, visible
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.retrieval import FolderMemory, IndexMemory, Retriever, UnknownLabels
from datamodules.retrieval.memories.changes import conflicting_rows, corrections
from zoo.memory.opened import OpenedMemory

_SHOWN_CONFLICTS = 10


def add(
    model: str,
    file: str,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    id_column: Column | None = None,
    header: bool | None = None,
    class_names: str | list[str] | None = None,
    unknown_labels: UnknownLabels = "refuse",
    new_labels: bool = False,
    relabel: bool = False,
    tune: bool = False,
    push: str | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Add the rows of a table to a model's memory. Its predictions use them at once, without training.

    Duplicates of rows in the memory (case, punctuation and white space folded, same label) are skipped and counted; a
    duplicate with another label is kept next to the old row, unless `relabel`. The old version stays: see
    `memory_version` of `zoo predict`.

    Args:
        model: a run folder or a model folder; or a memory folder.
        file: table of texts (CSV, TSV, JSONL, Parquet, a saved dataset, hub:NAME), labelled if the memory is.
        text_column: name or number of the text, or several; null: as for the first rows of the memory.
        label_column: name or number of the label; null: as for the first rows.
        id_column: name or number of an id; null names the rows VERSION:POSITION.
        header: whether a CSV file has a header line; null: as for the first rows.
        class_names: names for labels that are numbers from 1: a list, or a file; null: as for the first rows.
        unknown_labels: refuse a table with labels that the model does not know, or skip and count these rows.
        new_labels: add such rows: the model predicts their labels from then on by its memory alone.
        relabel: correct the memory: rows with the text of a new one get its label.
        tune: fit the weights to the grown memory, on the held-out rows that stayed with the model and on the added
            rows, each classified without it.
        push: upload the changed model, too: wandb:entity/project/name, a new version of an artifact whose inputs have
            the table, or user/name on the Hugging Face Hub.
        retriever: back end to use instead of the model's (another server).
    """
    opened = OpenedMemory.open_to_change(model, retriever, push=push)
    memory, labels = opened.folder, opened.memory.labels()
    given = {
        "text_column": text_column,
        "label_column": label_column,
        "header": header,
        "class_names": class_names,
    }
    columns = opened.columns | {name: value for name, value in given.items() if value is not None}
    columns["id_column"] = id_column
    if not labels:
        columns["label_column"] = label_column
    rows = read_table(file, **columns)
    known = opened.addable_labels(new_labels)
    tuned = opened.check_fits_weights("--tune") if tune else None
    corrected = 0
    if relabel and (changes := corrections(opened.folder.rows, opened.folder.opened.lookup, rows)):
        corrected = memory.relabel(changes, known).changed
    done = memory.add(rows, known, unknown_labels, keep_ids=id_column is not None)
    fresh = [label for label in memory.labels() if label not in labels]
    if opened.model is not None and fresh:
        print(f"labels that only the memory has: {', '.join(map(visible, fresh))}")
    facts = [
        (done.conflicting, "with the text of a memory with another label"),
        (done.duplicates, "duplicates skipped"),
        (done.unknown, "rows with unknown labels skipped"),
        (corrected, "old ones relabelled"),
    ]
    listed = ", ".join(f"{number} {what}" for number, what in facts if number)
    print(
        f"{memory.location()}: version {done.version}, {done.rows} memories, {done.added} new"
        + (f" ({listed})" if listed else "")
    )
    if done.conflicting:
        print(
            "a text with two labels has two votes; to give the old memories the new label: the same command with"
            " --relabel true"
        )
    if tuned is not None:
        from zoo.memory.tuning import fit_again

        fit_again(tuned, None, refit=False, retriever=retriever)
    opened.share(push)


def show(model: str, memory: str | None = None, retriever: Retriever | None = None) -> None:
    """Print where a memory is, its versions, labels, back end and ranking.

    Args:
        model: a run folder or a model folder; or a memory folder.
        memory: a memory folder instead of the model's.
        retriever: back end to use instead of the model's (another server).
    """
    import pyarrow.compute as pc

    opened = OpenedMemory.open(model, retriever, memory).memory
    facts = {"memory": opened.location()}
    labels, conflicts = opened.labels(), list[str]()
    if isinstance(opened, FolderMemory):
        facts["version"] = str(opened.version)
        facts["versions"] = ", ".join(f"{version}: {rows} rows" for version, rows in opened.versions())
        counts = pc.value_counts(opened.rows.table.column("label").drop_null()).to_pylist()
        number_of = {count["values"]: count["counts"] for count in counts}
        labels = [f"{label} {number_of[label]}" for label in labels]
        conflicts = _conflicts_of(opened)
    facts["labels"] = ", ".join(labels) or "none"
    if conflicts:
        facts["conflicts"] = f"{len(conflicts)} texts with several labels; `zoo memory relabel` corrects them"
    facts["back end"] = type(opened.retriever).__name__
    if not isinstance(opened, IndexMemory):  # an index of the user's has its own ranking
        ranking = opened.retriever.ranking.describe()
        facts["ranking"] = ", ".join(f"{name}={value}" for name, value in ranking.items())
    for name, value in facts.items():
        print(f"{name:9} {visible(value)}")
    for line in conflicts[:_SHOWN_CONFLICTS]:
        print(f"{'':9} {line}")


def _conflicts_of(memory: FolderMemory) -> list[str]:
    """Return a line for each text that has several labels, with ids and labels of its rows."""
    lines = []
    for rows in conflicting_rows(memory.rows, memory.opened.lookup):
        named = memory.rows.select(rows)
        votes = zip(named.ids, named.table.column("label").to_pylist(), strict=True)
        listed = ", ".join(f"{name} {label}" for name, label in votes)
        lines.append(f"{excerpt(named.texts[0], 60)}: {visible(listed)}")
    return lines
