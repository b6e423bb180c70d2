"""`zoo memory`: what a memory holds, and how it grows while the model stays as it is.

    zoo memory add CKPT more.csv     its predictions use the new rows at once
    zoo memory tune CKPT dev.csv     how much the model trusts its memory, fitted in seconds
    zoo memory show CKPT             versions, labels, back end

Where a checkpoint is wanted, a memory folder will do: then there is no model whose labels must fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from datamodules.base import TextDataModule
from datamodules.core.errors import InputError
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.retrieval import (
    FolderMemory,
    IndexMemory,
    Memory,
    Retriever,
    UnknownLabels,
    open_memory,
)
from zoo.memory import tuning
from zoo.saving.checkpoint import (
    CHECKPOINT_KEY,
    note_labels,
    note_memory,
    own_memory,
    read_checkpoint,
    write_checkpoint,
)
from zoo.saving.loading import known_model, load, make_data
from zoo.saving.model_folder import is_model_folder, local_model


class Opened(NamedTuple):
    """A memory, and the data side of the checkpoint that uses it; None if a folder was named."""

    memory: Memory
    data: TextDataModule[Any, Any] | None


def add(
    checkpoint: str,
    file: str,
    memory: str | None = None,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    id_column: Column | None = None,
    header: bool | None = None,
    class_names: str | list[str] | None = None,
    unknown_labels: UnknownLabels = "refuse",
    new_labels: bool = False,
    retriever: Retriever | None = None,
) -> None:
    """Add the rows of a table to a model's memory. Its predictions use them at once, without training.

    Copies of what is there (case, punctuation and white space folded, same label) are left out and counted; a copy with
    another label is kept beside the old row. The old version stays: see `memory_version` of `zoo predict`.
    Interrupted, the memory is as it was: run it again. The memory of a table (the training rows, or another), which
    all runs on this table share, is first copied beside the checkpoint, so that the other runs' predictions stay as
    they are.

    Args:
        checkpoint: a checkpoint that `zoo fit` wrote, or a memory folder.
        file: table of labelled texts (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME); without labels
            if the memory has none.
        memory: a memory folder instead of the checkpoint's.
        text_column: name or number of the text, or several; null: as for the rows that the memory began with.
        label_column: name or number of the label; null: likewise.
        id_column: name or number of an id; null names the rows VERSION:POSITION.
        header: whether a CSV file has a header line; null: as for the first rows.
        class_names: names for labels that are numbers from 1: a list, or a file; null: as for the first rows.
        unknown_labels: what to do about rows whose label the model does not know: refuse the table, or skip
            and count them.
        new_labels: take such rows: the model predicts their labels from then on by its memory alone.
        retriever: back end to use instead of the checkpoint's (another server).
    """
    found, data = open_memory_of(checkpoint, memory, retriever)
    labelled = bool(found.labels())
    given = {
        "text_column": text_column,
        "label_column": label_column,
        "header": header,
        "class_names": class_names,
    }
    columns = {} if data is None else data.memory_columns()
    columns |= {name: value for name, value in given.items() if value is not None}
    columns["id_column"] = id_column
    if not labelled:
        columns["label_column"] = label_column
    rows = read_table(file, **columns)
    own = Path(own_memory(local_model(checkpoint).resolve()))
    is_shared = memory is None and data is not None and data.memory_rows is not None
    if is_shared and isinstance(found, FolderMemory):
        # Other runs on the same table use it, too.
        found = found.copy_to(own)
    known = data.memory_labels if data is not None and labelled else None
    if new_labels:
        _check_new_labels(checkpoint, data)
        known = None
    done = found.add(rows, known, unknown_labels, keep_ids=id_column is not None)
    if data is not None and found.location() == str(own):
        note_memory(local_model(checkpoint), str(own), done.version)
    if data is not None and new_labels:
        fresh = [label for label in found.labels() if label not in (data.memory_labels or ())]
        note_labels(local_model(checkpoint), fresh)
        if fresh:
            print(f"labels that the memory alone knows, noted in the run's checkpoints: {', '.join(fresh)}")
    left_out = [(done.duplicates, "copies left out"), (done.unknown, "rows with unknown labels left out")]
    kept = [(done.relabelled, "of them with a text that is there with another label")]
    facts = ", ".join(f"{number} {what}" for number, what in [*kept, *left_out] if number)
    print(
        f"{found.location()}: version {done.version}, {done.rows} memories, {done.added} new"
        + (f" ({facts})" if facts else "")
    )


def _check_new_labels(checkpoint: str, data: TextDataModule[Any, Any] | None) -> None:
    if data is None:
        raise InputError(f"--new_labels: {checkpoint} is a memory folder, which takes any label without it")
    kind = known_model(read_checkpoint(checkpoint), checkpoint)
    if not kind.takes_new_labels:
        raise InputError(
            f"--new_labels: a {kind.__name__} can't predict labels that it was not trained with; train it again with"
            " their rows, or use a WitnessEnsemble"
        )
    if local_model(checkpoint).is_dir():
        raise InputError(
            f"--new_labels: {checkpoint} is an exported model, whose files can't be changed; add the rows to its"
            " checkpoint and export that again"
        )


def tune(
    checkpoint: str,
    file: str,
    output: str | None = None,
    memory: str | None = None,
    text_column: TextColumn | None = None,
    label_column: Column | None = None,
    retriever: Retriever | None = None,
) -> None:
    """Fit how much a model trusts its memory, on labelled rows: after a memory has grown, or to start with.

    Takes seconds: no weight is trained, only the share and the sharpness of the memories' vote are chosen.

    Args:
        checkpoint: a checkpoint that `zoo fit` wrote.
        file: table of labelled rows that are in neither the training set nor the memory.
        output: the checkpoint to write; null writes `tuned.ckpt` beside the given one.
        memory: a memory folder instead of the checkpoint's.
        text_column: name or number of the text, or several; null: as in training.
        label_column: name or number of the label; null: as in training.
        retriever: back end to use instead of the checkpoint's (another server).
    """
    target = Path(checkpoint).with_name("tuned.ckpt") if output is None else Path(output)
    if target.is_dir():
        raise InputError(f"--output {target}: is a folder; name a file")
    contents = read_checkpoint(checkpoint)
    if memory is not None:
        open_memory_of(checkpoint, memory, retriever)  # refuses one of another model
    predictor = load(checkpoint, memory=memory, retriever=retriever)
    if not predictor.model.takes_refit:
        tuning.voting(predictor)  # refused before a table is read
    options = predictor.data.options
    names = ("text_column", "label_column", "header", "quotes", "class_names")
    columns = {name: options[name] for name in names if name in options}
    given = {"text_column": text_column, "label_column": label_column}
    columns |= {name: value for name, value in given.items() if value is not None}
    rows = read_table(file, **columns)
    said = predictor.model.refit(predictor, rows) or _say(tuning.tune(predictor, rows))
    contents["state_dict"] = predictor.model.state_dict()
    data = contents[CHECKPOINT_KEY]["data"]
    # The vote belongs to the memory that it was tuned for, wherever the checkpoint lies.
    data["memory"] = predictor.memory.location()
    if memory is not None:
        data["options"]["memory"] = data["memory"]
        data.update(memory_rows=None, own_memory=False, memory_version=None)
    write_checkpoint(contents, target)
    print(f"{target}: {said}")


def _say(tuned: tuning.Tuned) -> str:
    reasons = [
        (tuned.in_memory, "left out because the memory has them"),
        (tuned.in_training, "left out because the model was trained on them"),
        (tuned.near, "of these differ from a memory in a few characters, which makes the vote look better"),
    ]
    facts = "".join(f", {number} {reason}" for number, reason in reasons if number)
    return (
        f"vote {tuned.mix:.2f}, sharpness {tuned.tau:g}; accuracy {tuned.accuracy_before:.4f} ->"
        f" {tuned.accuracy:.4f} on the {tuned.rows} rows it was tuned on{facts}"
    )


def show(checkpoint: str, memory: str | None = None, retriever: Retriever | None = None) -> None:
    """Show a memory: where it is, its versions, labels, back end and ranking.

    Args:
        checkpoint: a checkpoint that `zoo fit` wrote, or a memory folder.
        memory: a memory folder instead of the checkpoint's.
        retriever: back end to use instead of the checkpoint's (another server).
    """
    found = open_memory_of(checkpoint, memory, retriever).memory
    facts = {"memory": found.location()}
    if isinstance(found, FolderMemory):
        facts["version"] = str(found.version)
        facts["versions"] = ", ".join(f"{version}: {rows} rows" for version, rows in found.versions())
        counts = pc.value_counts(found.rows.table.column("label").drop_null()).to_pylist()
        number_of = {count["values"]: count["counts"] for count in counts}
        labels = [f"{label} {number_of[label]}" for label in found.labels()]
    else:
        labels = found.labels()
    facts["labels"] = ", ".join(labels) or "none"
    facts["back end"] = type(found.retriever).__name__
    if not isinstance(found, IndexMemory):  # an index of the user's ranks as he has set it
        facts["ranking"] = ", ".join(
            f"{name}={value}" for name, value in found.retriever.ranking.describe().items()
        )
    for name, value in facts.items():
        print(f"{name:9} {value}")


def open_memory_of(checkpoint: str, memory: str | None = None, retriever: Retriever | None = None) -> Opened:
    """The current version of the memory that a checkpoint uses, or of a memory folder.

    Args:
        checkpoint: a checkpoint, or a memory folder.
        memory: a folder instead of the checkpoint's memory.
        retriever: back end and ranking instead of the checkpoint's.

    Raises:
        InputError: there is none, it can't be opened, or it belongs to another model.
    """
    if Path(checkpoint).is_dir() and not is_model_folder(checkpoint):
        if memory is not None:
            raise InputError(f"{checkpoint}: is a folder; give a checkpoint, or leave --memory out")
        return Opened(open_memory(checkpoint, retriever), None)
    data = make_data(read_checkpoint(checkpoint), retriever)
    if not data.has_memory:
        raise InputError(f"{checkpoint}: this model reads no memory; train one with --data.num_memories")
    opened = data.open_memory(memory, retriever=retriever)
    data.check_memory(opened)
    return Opened(opened, data)
